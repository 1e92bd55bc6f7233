"""Roamcast: publish/subscribe for things that move."""

from typing import TYPE_CHECKING

__version__ = "0.3.0"
__all__ = [
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectError",
    "Notification",
    "PublishError",
    "SubscribeError",
    "Will",
    "__version__",
    "connect",
]

if TYPE_CHECKING:
    from roamcast.client import (
        Client,
        ClientClosed,
        ClientError,
        ConnectError,
        Notification,
        PublishError,
        SubscribeError,
        Will,
        connect,
    )
else:
    # Not for the type checker, which would believe that there is everything here.
    def __getattr__(name: str) -> object:
        # The client is loaded when it is asked for: most of what is imported from here does not need it.
        if name in __all__:
            from roamcast import client

            return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
