"""Adapter for Roamcast's own broker, used without its mobility.

It is an MQTT 5 broker with extensions: a filter may have conditions on the content behind its topic
(`city/+/air?pm10>50`), and every notification has its own identity.
"""

from __future__ import annotations

from roamcast.client import Client, Notification
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.base import without_identity
from roamcast.proxy.mosquitto import MosquittoAdapter, identifier_of


class RoamcastAdapter(MosquittoAdapter):
    async def ask(self, client: Client, filter: str) -> None:
        await client.subscribe(
            filter, qos=1, retain_handling=1, identifier=identifier_of(filter), identify=True
        )

    def message_of(self, notification: Notification) -> ForeignMessage:
        own = notification.identity
        text = f"{own.publisher}:{own.incarnation}:{own.number}" if own is not None else ""
        return without_identity(notification.topic, notification.payload, notification.properties, text)
