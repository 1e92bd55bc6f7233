"""Mobility protocols, one file each. Importing the package registers them all."""

from roamcast.mobility import (  # noqa: F401 (each registers itself)
    durable,
    home_broker,
    multi_hop_handoff,
    none,
    phoenix,
    proactive,
    reactive,
    relocation,
    relocation_published,
    roam,
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
from roamcast.mobility.moving import mft, mft_published, recursive_migration  # noqa: F401 (each registers itself)
from roamcast.mobility.moving.mobile import MOBILE_PROTOCOLS, find_mobile_protocol

__all__ = [
    "MOBILE_PROTOCOLS",
    "PROTOCOLS",
    "Host",
    "MobilityProtocol",
    "Promise",
    "Settings",
    "check_combination",
    "find_mobile_protocol",
    "find_protocol",
    "register",
]
