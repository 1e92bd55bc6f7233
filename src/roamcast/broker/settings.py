"""What can be set for a site. It is an input too: a replay goes by the settings of its time."""

from __future__ import annotations

from typing import Literal

import msgspec

from roamcast.broker.core import CoreSettings
from roamcast.broker.links.rules import PeerRules
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.mobility.moving.mobile import MobileSettings
from roamcast.mqtt.server.endpoint import EndpointSettings
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.movement_graph import parse_movement_graph
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.variables import NumberSteps, Variable


class StateSettings(msgspec.Struct, frozen=True):
    """Something that clients say of themselves: how it may change in one step."""

    name: str
    graph: str = ""
    """The text of a graph of its values; "": it is a number."""
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
    """What clients talk to (see `broker.fronts`); only simulators have the plain one."""
    encodes: bool = True
    """Whether links make bytes of messages; not where all brokers are in one process and none can crash."""
    broker: CoreSettings = CoreSettings(clock_error_s=None)
    endpoint: EndpointSettings = EndpointSettings()
    movement_graph: str = ""
    """The text of the movement graph, for filters that depend on where the client is; "" allows none."""
    position_step_m: float = 0.0
    """Locations are positions on the earth, and a client gets no farther from one report to the next; 0: they
    are not."""
    zones: tuple[tuple[str, str], ...] = ()
    """Regions that filters may call by name: the name, and GeoJSON."""
    dwell_s: float = 0.0
    hysteresis_m: float = 0.0
    """Hysteresis of geofences (see `routing.location.settings`)."""
    told_in: tuple[str, ...] = ()
    told_topics: tuple[str, ...] = ()
    """Fields and topics of what clients publish that say where they are (see `routing.location.settings`)."""
    lent: str = ""
    """Where clients of this broker are that have not said where they are; "": nobody knows."""
    states: tuple[StateSettings, ...] = ()
    stay_s: float | None = None
    """How long clients keep a location, or another state, at least; None: learnt from the changes of each."""
    stay_first_s: float = 1.0
    retained_messages_max: int = 100_000
    retained_bytes_max: int = 256 << 20
    peers: tuple[str, ...] = ()
    """The peers that are configured."""
    meet_timeout_s: float = 5.0
    serves_unmet: bool = False
    """Whether, after that time, sessions are also made anew by a broker that has never met all its peers."""
    """How long after a start to wait for a peer that was never met and may hold a session."""
    election: ElectionSettings = ElectionSettings()
    """Settings of the election, for brokers that move, and …"""
    border: dict[str, PeerRules] | None = None
    """What each peer may do; "" is for those not listed. None: everyone is believed (in simulators)."""
    seen_max: int = MobileSettings().seen_max
    """… how many deliveries to each of its clients a broker remembers, to deliver none twice."""

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
