"""Owners of sessions: who may have a session, and which brokers can vouch for it.

An owner is `SITE/user:NAME` or `SITE/certificate:NAME`. The site is the id of the broker that authenticated
the client, or `@REALM` where several brokers share their users. Unauthenticated clients share one owner,
`anonymous`, at every broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

REALM = "@"
"""Prefix of the site of users that several brokers share; no broker's id begins with it."""


def site_name(broker: str, realm: str) -> str:
    """Return the site name of users that authenticate at a broker."""
    return REALM + realm if realm else broker


def site_of(owner: str) -> str:
    """Return the site that authenticated the owner; "" for anonymous clients, and where no site was named."""
    site, slash, _ = owner.partition("/")
    return site if slash else ""


def is_same(owner: str, other: str, broker: str, realm: str) -> bool:
    """True if both are one user for this broker: its own users are those of its realm."""

    def name(one: str) -> str:
        return one.replace(broker, REALM + realm, 1) if realm and site_of(one) == broker else one

    return name(owner) == name(other)


def vouches(broker: str, owner: str, realm: str, realm_brokers: Sequence[str]) -> bool:
    """True if `broker` may vouch that a client has this owner.

    A broker vouches for its own users. Brokers listed in `realm_brokers` (* is a wildcard) vouch for users of
    a realm, and only if this broker is in that realm itself.
    """
    site = site_of(owner)
    if not site or site == broker:
        return True
    return bool(realm) and site == REALM + realm and any(fnmatchcase(broker, one) for one in realm_brokers)
