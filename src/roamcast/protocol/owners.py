"""Owners of sessions: who may have a session, and whose word counts for that.

An owner is `SITE/user:NAME` or `SITE/certificate:NAME`. The site is the id of the broker that authenticated
the client, or `@REALM` where several brokers share their users. Clients that proved nothing share one owner,
`anonymous`, at every broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

REALM = "@"
"""Begins the site of users that several brokers share; no broker's id begins like this."""


def site_name(broker: str, realm: str) -> str:
    """What qualifies the users that prove themselves at a broker."""
    return REALM + realm if realm else broker


def site_of(owner: str) -> str:
    """The site that authenticated the owner; "" for anonymous clients, and where no site was named."""
    site, slash, _ = owner.partition("/")
    return site if slash else ""


def is_same(owner: str, other: str, broker: str, realm: str) -> bool:
    """True if both are one user, as this broker sees it: its own users are those of its realm."""

    def name(one: str) -> str:
        return one.replace(broker, REALM + realm, 1) if realm and site_of(one) == broker else one

    return name(owner) == name(other)


def vouches(broker: str, owner: str, realm: str, realm_brokers: Sequence[str]) -> bool:
    """True if `broker` may say of a client that it is this owner.

    A broker speaks for its own users. For those of a realm speak the brokers that `realm_brokers` lists
    (* stands for anything), and only where this broker is in that realm itself.
    """
    site = site_of(owner)
    if not site or site == broker:
        return True
    return bool(realm) and site == REALM + realm and any(fnmatchcase(broker, one) for one in realm_brokers)
