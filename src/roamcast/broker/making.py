"""The site for a protocol. Which family it belongs to is asked of the registries, never by name."""

from __future__ import annotations

from roamcast.broker.contract import AnySite
from roamcast.broker.machine import Site
from roamcast.broker.moving.machine import MobileSite
from roamcast.broker.settings import SiteSettings
from roamcast.errors import InputError
from roamcast.mobility import MOBILE_PROTOCOLS, PROTOCOLS


def make_site(settings: SiteSettings) -> AnySite:
    if settings.protocol in PROTOCOLS:
        return Site(settings)
    if settings.protocol in MOBILE_PROTOCOLS:
        return MobileSite(settings)
    valid = ", ".join(sorted({**PROTOCOLS, **MOBILE_PROTOCOLS}))
    raise InputError(f"protocol {settings.protocol!r}: valid are {valid}")
