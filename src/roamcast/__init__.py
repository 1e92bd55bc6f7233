"""Roamcast: publish/subscribe for things that move."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.client import connect as connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> Any:
    # The client is loaded when it is asked for: most of what is imported from here does not need it.
    if name == "connect":
        from roamcast.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
