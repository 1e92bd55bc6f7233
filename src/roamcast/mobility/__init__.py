"""Mobility protocols, one file each. Importing the package registers them all."""

from roamcast.mobility import (
    durable,
    home_broker,
    multi_hop_handoff,
    none,
    phoenix,
    proactive,
    reactive,
    relocation,
    sub_unsub,
)
from roamcast.mobility.base import (
    PROTOCOLS,
    Host,
    MobilityProtocol,
    Promise,
    Settings,
    check_combination,
    find_protocol,
    register,
)

__all__ = [
    "PROTOCOLS",
    "Host",
    "MobilityProtocol",
    "Promise",
    "Settings",
    "check_combination",
    "durable",
    "find_protocol",
    "home_broker",
    "multi_hop_handoff",
    "none",
    "phoenix",
    "proactive",
    "reactive",
    "register",
    "relocation",
    "sub_unsub",
]
