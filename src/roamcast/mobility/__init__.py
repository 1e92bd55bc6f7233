"""Mobility protocols, one file each. Importing the package registers them all."""

from roamcast.mobility import durable, multi_hop_handoff, none, proactive, relocation, sub_unsub
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
    "multi_hop_handoff",
    "none",
    "proactive",
    "register",
    "relocation",
    "sub_unsub",
]
