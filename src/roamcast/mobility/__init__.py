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
from roamcast.mobility.moving import mft, recursive_migration
from roamcast.mobility.moving.mobile import MOBILE_PROTOCOLS, find_mobile_protocol

__all__ = [
    "MOBILE_PROTOCOLS",
    "PROTOCOLS",
    "Host",
    "MobilityProtocol",
    "Promise",
    "Settings",
    "check_combination",
    "durable",
    "find_mobile_protocol",
    "find_protocol",
    "home_broker",
    "mft",
    "multi_hop_handoff",
    "none",
    "phoenix",
    "proactive",
    "reactive",
    "recursive_migration",
    "register",
    "relocation",
    "sub_unsub",
]
