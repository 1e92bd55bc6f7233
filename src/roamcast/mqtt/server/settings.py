"""Settings of the MQTT endpoint."""

from __future__ import annotations

import msgspec

from roamcast.mqtt.server.steering import Steering


class EndpointSettings(msgspec.Struct, frozen=True):
    packet_max: int = 1 << 20
    small_packet_max: int = 16 << 10
    """Size limit of packets other than PUBLISH, SUBSCRIBE and UNSUBSCRIBE."""
    receive_maximum: int = 1024
    """QoS 2 publishes that a client may have unreleased."""
    topic_alias_maximum: int = 64
    window: int = 4096
    """Maximum of unacknowledged QoS 1 and 2 messages sent to one client."""
    session_expiry_max_s: int = 7 * 24 * 3600
    session_expiry_v3_s: int = 7 * 24 * 3600
    """Session expiry of MQTT 3.1.1 clients, which cannot request one."""
    keep_alive_max_s: int = 0
    """Longest keep-alive that a client may request; 0: any."""
    settle_timeout_s: float = 5.0
    """Longest time in seconds that SUBACK waits until every broker knows the subscription."""
    locate_timeout_s: float = 10.0
    """Longest time in seconds that CONNACK waits for the session."""
    subscriptions_max: int = 1000
    """Subscriptions of one client."""
    waiting_bytes_max: int = 1 << 20
    """Bytes that a client may send before its session has arrived."""
    subscriptions_bytes_max: int = 32 << 20
    """Memory of the subscriptions of one client."""
    all_subscriptions_bytes_max: int = 2 << 30
    """Memory of all clients' subscriptions; at most half of it for one user."""
    wills_bytes_max: int = 64 << 20
    """Memory of all wills."""
    sessions_max: int = 100_000
    sessions_per_user_max: int = 10_000
    """Sessions of one user; anonymous clients do not count as one user."""
    site: str = ""
    """Qualifies users that authenticate here (see protocol.owners)."""
    qos_max: int = 2
    topic_bytes_max: int = 4096
    topic_levels_max: int = 128
    user_properties_max: int = 64
    """User properties of one packet."""
    shared: bool = True
    serves_unreachable: bool = False
    """True to serve clients whose sessions cannot be sought from stand-in sessions."""
    retain: bool = True
    network: str = ""
    """Name of the network, for clients that request it."""
    steering: Steering = Steering()
