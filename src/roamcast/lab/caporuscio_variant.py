"""A client whose subscriptions return before the broker has them, as those of the paper's Siena did.

It shows where the duplicates of ping come from (figure 10): over a narrow way subscribing takes a while,
and who does not wait for it asks for the download at once.
"""

from __future__ import annotations

from nats.aio.client import Client

from roamcast.proxy.nats import NatsAdapter


class HastyNats(NatsAdapter):
    async def _settle(self, client: Client, filter: str) -> None:
        """Go on at once; what the server refuses is never noticed."""
