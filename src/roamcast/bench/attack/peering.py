"""Attacks on the link listener by strangers that are not brokers."""

from __future__ import annotations

from roamcast.bench.attack.base import Attack, Crowd, Target
from roamcast.net.handshake import PREFACE

STRANGERS = 200


def silent_peers(target: Target) -> None:
    Crowd(target, "link", STRANGERS).keep()


def slow_peers(target: Target) -> None:
    Crowd(target, "link", STRANGERS).keep(PREFACE + b"\0\0\1\0")


ATTACKS = (
    Attack(
        "silent-peers", f"{STRANGERS} silent connections to the link listener while a broker joins",
        silent_peers, needs_peer=True, is_peer_late=True,
    ),
    Attack(
        "slow-peers", f"{STRANGERS} handshakes of a link byte by byte while a broker joins", slow_peers,
        needs_peer=True, is_peer_late=True,
    ),
)  # fmt: skip
