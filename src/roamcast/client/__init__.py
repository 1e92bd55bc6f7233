"""The async client: connect to the brokers of a network, subscribe, publish, move."""

from roamcast.client.addresses import Address
from roamcast.client.client import Client, connect
from roamcast.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    PublishError,
    SubscribeError,
)
from roamcast.client.notification import Notification
from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.identities import NotificationIdentity

__all__ = [
    "Address",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectError",
    "Notification",
    "NotificationIdentity",
    "PublishError",
    "Reason",
    "SubscribeError",
    "Will",
    "connect",
]
