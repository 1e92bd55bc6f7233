"""Builds the site's settings from the configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from roamcast.broker.core import CoreSettings
from roamcast.broker.links.rules import PeerRules
from roamcast.broker.settings import MachineSettings, StateSettings
from roamcast.config.sections import Config, Peer, StateSection
from roamcast.config.sections import Steering as SteeringSection
from roamcast.errors import InputError
from roamcast.filters.geography import NamedZone, read_geojson
from roamcast.mobility import MOBILE_PROTOCOLS
from roamcast.mobility.base import Settings
from roamcast.mobility.prediction import why_unusable
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.mqtt.server.steering import SteeredBroker, Steering
from roamcast.protocol.queues import QueueLimits
from roamcast.routing.location.movement_graph import MovementGraph, parse_movement_graph


def site_settings(config: Config) -> MachineSettings:
    mqtt, quotas, mobility = config.mqtt, config.quotas, config.mobility
    return MachineSettings(
        id=config.id,
        protocol=mobility.protocol,
        broker=CoreSettings(
            routing=mobility.routing,
            window=mqtt.inflight_max,
            queue=QueueLimits(
                quotas.queue_notifications_max,
                quotas.queue_bytes_max,
                drops_newest=quotas.drop == "newest",
                in_flight_bytes_max=quotas.output_bytes_max,
            ),
            records=config.events.level,
            records_attributes=config.events.attributes,
            clock_error_s=None,
            realm=config.access.realm,
            realm_brokers=config.access.realm_brokers,
            protocol=protocol_settings(config),
        ),
        endpoint=EndpointSettings(
            packet_max=mqtt.packet_bytes_max,
            small_packet_max=mqtt.small_packet_bytes_max,
            receive_maximum=mqtt.receive_maximum,
            topic_alias_maximum=mqtt.topic_alias_maximum,
            window=mqtt.inflight_max,
            session_expiry_max_s=mqtt.session_expiry_max_s,
            session_expiry_v3_s=mqtt.session_expiry_v3_s,
            keep_alive_max_s=mqtt.keep_alive_max_s,
            settle_timeout_s=mqtt.settle_timeout_s,
            locate_timeout_s=mobility.locate_timeout_s,
            subscriptions_max=quotas.subscriptions_per_client_max,
            retain=mqtt.retained,
            subscriptions_bytes_max=quotas.subscription_bytes_per_client_max,
            all_subscriptions_bytes_max=quotas.subscription_bytes_max,
            sessions_max=quotas.sessions_max,
            sessions_per_user_max=quotas.sessions_per_user_max,
            site=config.site,
            wills_bytes_max=quotas.wills_bytes_max,
            qos_max=mqtt.qos_max,
            topic_bytes_max=mqtt.topic_bytes_max,
            topic_levels_max=mqtt.topic_levels_max,
            user_properties_max=mqtt.user_properties_max,
            shared=mqtt.shared_subscriptions,
            serves_unreachable=mobility.unreachable == "serve",
            network=config.network,
            steering=read_steering(config.steering),
        ),
        movement_graph=_graph_text(config.location.movement_graph),
        position_step_m=config.location.position_step_m or 0.0,
        zones=read_zones(config.location.zones),
        dwell_s=config.location.zone_dwell_s,
        hysteresis_m=config.location.zone_hysteresis_m,
        told_in=config.location.attributes,
        told_topics=config.location.topics,
        lent=config.location.at,
        states=tuple(_read_state(state) for state in config.location.states),
        stay_s=config.location.stay_s,
        stay_first_s=config.location.stay_first_s,
        retained_messages_max=quotas.retained_messages_max,
        retained_bytes_max=quotas.retained_bytes_max,
        border=None if config.mobility.protocol in MOBILE_PROTOCOLS else border_rules(config),
        peers=tuple(peer.id for peer in config.peers if not peer.is_guest),
        meet_timeout_s=mobility.meet_timeout_s,
        serves_unmet=mobility.unmet == "serve",
        election=config.election,
        seen_max=mobility.seen_max,
    )


def read_steering(section: SteeringSection) -> Steering:
    brokers = tuple(SteeredBroker(one.id, one.address, one.position) for one in section.brokers)
    known = {one.id for one in brokers}
    if (section.overflow or section.clients_max) and section.overflow not in known:
        raise InputError(f"steering.overflow {section.overflow!r}: no [[steering.broker]] has this id")
    signals: dict[str, str] = {}
    lines = Path(section.signals).read_text(encoding="utf-8").splitlines() if section.signals else []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in known:
            raise InputError(
                f"steering.signals: {section.signals}, line {number}: valid is NAME BROKER,"
                f" with a broker among {', '.join(sorted(known)) or 'those of [[steering.broker]]'}"
            )
        signals[words[0]] = words[1]
    return Steering(brokers, signals)


def protocol_settings(config: Config) -> Settings:
    """Return the settings of the mobility protocol, with the model of clients' next brokers if that can be
    used."""
    settings = Settings(**msgspec.structs.asdict(config.mobility.settings))
    model, _ = read_model(config)
    return msgspec.structs.replace(settings, neighbour_graph=model) if model else settings


def read_model(config: Config) -> tuple[str, str]:
    """Return the model of clients' next brokers, or why it cannot be used; both are empty if there is
    none."""
    path = config.mobility.model
    if not path:
        return "", ""
    try:
        model = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return "", f"it cannot be read ({getattr(error, 'strerror', None) or 'not a text in UTF-8'})"
    why = why_unusable(model, config.id, time.time(), config.mobility.model_age_s_max)
    return ("", why) if why else (model, "")


def border_rules(config: Config) -> dict[str, PeerRules]:
    """Return the rules of each peer; "" stands for peers that are not listed."""
    return {peer.id: _rules_of(peer) for peer in config.peers} | {"": _rules_of(Peer(id="any"))}


def _rules_of(peer: Peer) -> PeerRules:
    return PeerRules(
        imports=peer.imports,
        exports=peer.exports,
        clients=peer.clients,
        prefix=peer.prefix,
        may=peer.may,
        subscriptions_max=peer.subscriptions_max,
        retained_max=peer.retained_max,
        sessions_max=peer.sessions_max,
    )


def _read_state(state: StateSection) -> StateSettings:
    graph = _graph_text(state.graph)
    return StateSettings(state.name, graph, state.fall, state.rise, state.lowest, state.highest)


def read_graph(path: str) -> MovementGraph:
    """Read a movement graph; InputError says in one line what is wrong."""
    return parse_movement_graph(Path(path).read_text(encoding="utf-8"), path)


def _graph_text(path: str) -> str:
    if not path:
        return ""
    read_graph(path)
    return Path(path).read_text(encoding="utf-8")


def read_zones(path: str) -> tuple[tuple[str, str], ...]:
    """The zones of a GeoJSON file: the name of each, and its polygon."""
    if not path:
        return ()
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_Features)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"location.zones: {path}: is not a GeoJSON FeatureCollection: {error}") from None
    zones: dict[str, str] = {}
    for number, feature in enumerate(found.features):
        name = feature.properties.get("name")
        where = f"location.zones: {path}: features.{number}"
        if not isinstance(name, str) or not name:
            raise InputError(f'{where}: has no "name" among its properties')
        if any(character in name for character in "/+#\0"):
            raise InputError(
                f"{where}: name {name!r}: it becomes a level of a topic; valid is a name without / + #"
            )
        if name in zones:
            raise InputError(f"{where}: there is another zone with the name {name!r}")
        try:
            NamedZone(name)
            zones[name] = read_geojson(msgspec.json.encode(feature.geometry)).shape
        except InputError as error:
            raise InputError(f"{where} ({name}): {error}") from None
    return tuple(zones.items())


class _Feature(msgspec.Struct):
    geometry: dict[str, Any]
    properties: dict[str, Any]


class _Features(msgspec.Struct):
    features: list[_Feature]
