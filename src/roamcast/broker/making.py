"""Make the site for a protocol; the registries, not its name, decide the family."""

from __future__ import annotations

from roamcast.broker.contract import AnyMachine
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.moving.machine import MovingMachine
from roamcast.broker.settings import MachineSettings
from roamcast.errors import InputError
from roamcast.mobility import MOBILE_PROTOCOLS, PROTOCOLS


def make_machine(settings: MachineSettings) -> AnyMachine:
    if settings.protocol in PROTOCOLS:
        return BrokerMachine(settings)
    if settings.protocol in MOBILE_PROTOCOLS:
        return MovingMachine(settings)
    valid = ", ".join(sorted({**PROTOCOLS, **MOBILE_PROTOCOLS}))
    raise InputError(f"protocol {settings.protocol!r}: valid are {valid}")
