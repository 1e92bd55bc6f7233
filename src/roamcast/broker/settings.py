"""Settings of a site. They are an input, too: a replay uses the settings of its time."""

from __future__ import annotations

from typing import Literal

import msgspec

from roamcast.broker.core import CoreSettings
from roamcast.broker.links.rules import PeerRules
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.mobility.moving.mobile import MobileSettings
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.movement_graph import parse_movement_graph
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.variables import NumberSteps, Variable


class StateSettings(msgspec.Struct, frozen=True):
    """A state that clients report of themselves, and how it may change in one step."""

    name: str
    graph: str = ""
    """Text of a graph of its values; "" for a number."""
    fall: float = 0.0
    rise: float = 0.0
    lowest: float = -1e12
    highest: float = 1e12

    def variable(self) -> Variable:
        if self.graph:
            return parse_movement_graph(self.graph)
        return NumberSteps(self.fall, self.rise, self.lowest, self.highest)


class MachineSettings(msgspec.Struct, frozen=True):
    id: str
    protocol: str = "multi_hop_handoff"
    front: Literal["mqtt", "plain"] = "mqtt"
    """Access side of the broker (see `broker.fronts`); only simulators use "plain"."""
    encodes: bool = True
    """True if links encode messages; not needed where all brokers run in one process and none can crash."""
    broker: CoreSettings = CoreSettings(clock_error_s=None)
    endpoint: EndpointSettings = EndpointSettings()
    movement_graph: str = ""
    """Text of the movement graph, for filters that depend on the client's location; "" disables them."""
    position_step_m: float = 0.0
    """Maximum distance between two reported positions of a client, where locations are positions on the
    earth; 0 where they are not."""
    zones: tuple[tuple[str, str], ...] = ()
    """Regions that filters may refer to by name: the name, and GeoJSON."""
    dwell_s: float = 0.0
    hysteresis_m: float = 0.0
    """Hysteresis of geofences (see `routing.location.settings`)."""
    told_in: tuple[str, ...] = ()
    told_topics: tuple[str, ...] = ()
    """Fields and topics of published messages that report the client's location (see
    `routing.location.settings`)."""
    lent: str = ""
    """Assumed location of clients of this broker that never reported one; "": unknown."""
    states: tuple[StateSettings, ...] = ()
    stay_s: float | None = None
    """Minimum time that clients keep a location or other state; None: learnt from each client's changes."""
    stay_first_s: float = 1.0
    retained_messages_max: int = 100_000
    retained_bytes_max: int = 256 << 20
    peers: tuple[str, ...] = ()
    """Configured peers."""
    meet_timeout_s: float = 5.0
    """Time to wait after a start for a peer that was never met and may hold a session."""
    serves_unmet: bool = False
    """True if, after that time, a broker that has never met all its peers also makes sessions anew."""
    election: ElectionSettings = ElectionSettings()
    """Settings of the election, for brokers that move."""
    border: dict[str, PeerRules] | None = None
    """Rules for each peer; "" for those not listed. None: every peer is trusted (in simulators)."""
    seen_max: int = MobileSettings().seen_max
    """Deliveries to each client that a broker that moves remembers, to suppress duplicates."""

    def location(self) -> LocationSettings:
        states = {state.name: state.variable() for state in self.states}
        if self.movement_graph:
            states["location"] = parse_movement_graph(self.movement_graph)
        elif self.position_step_m:
            states["location"] = Earth(self.position_step_m)
        return LocationSettings(
            states, self.stay_s, self.stay_first_s, zones=dict(self.zones), dwell_s=self.dwell_s,
            hysteresis_m=self.hysteresis_m, told_in=self.told_in, told_topics=self.told_topics,
            lent={self.id: self.lent} if self.lent else {},
        )  # fmt: skip
