"""What can be set for a site. It is an input too: a replay goes by the settings of its time."""

from __future__ import annotations

import msgspec

from roamcast.mqtt.endpoint import EndpointSettings
from roamcast.node.broker import BrokerSettings


class SiteSettings(msgspec.Struct, frozen=True):
    id: str
    protocol: str = "multi_hop_handoff"
    broker: BrokerSettings = BrokerSettings(clock_error_s=None)
    endpoint: EndpointSettings = EndpointSettings()
    movement_graph: str = ""
    """The text of the movement graph, for filters that depend on where the client is; "" allows none."""
    retained_messages_max: int = 100_000
    retained_bytes_max: int = 256 << 20
