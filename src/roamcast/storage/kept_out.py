"""Clients and peers kept out after a fail-stop, and for how long.

A culprit is a client or a peer whose input made a turn raise. Its time doubles with each repetition. A
suspect only had input in a turn that raised for unknown reasons: it is kept out for the shortest time,
unless it was a culprit before. Everything is forgotten after a day without repetition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from roamcast.storage.failures import write_private

log = logging.getLogger("roamcast")

FILE_NAME = "kept-out.json"
FIRST_S = 30.0
LONGEST_S = 3600.0
FORGOTTEN_AFTER_S = 86_400.0
UNEXPLAINED_MAX = 5
UNEXPLAINED_WITHIN_S = 600.0
OFFENDERS_MAX = 10_000


class Who(NamedTuple):
    """A client by its id, or a peer by its broker id."""

    kind: Literal["client", "peer"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Offender(msgspec.Struct):
    kind: Literal["client", "peer"]
    name: str
    count: int
    """Number of times as culprit; 0 for a suspect."""
    last_at: float
    until: float
    why: str


class Ledger(msgspec.Struct):
    """The record of fail-stops, as the file holds it."""

    fail_stops: int = 0
    """Number of fail-stops since the file was created."""
    unexplained_at: list[float] = []
    """Times of recent fail-stops without a culprit."""
    offenders: list[Offender] = []


class KeptOut:
    """The ledger in a data folder."""

    def __init__(self, data: Path, clock: Callable[[], float], ledger: Ledger | None = None) -> None:
        """`ledger` is newer than the file if the process before could not write it."""
        self._path = data / FILE_NAME
        self._clock = clock
        found = ledger or self._read()
        self.fail_stops = found.fail_stops
        self._unexplained_at = found.unexplained_at
        now = clock()
        self._offenders = {Who(one.kind, one.name): one for one in found.offenders}
        for one in self._offenders.values():
            one.until = min(one.until, now + LONGEST_S)  # The clock may have been set back since.

    def _read(self) -> Ledger:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Ledger)
        except FileNotFoundError:
            return Ledger()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s: cannot be read (%s); nobody is kept out", self._path, error)
            return Ledger()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.fail_stops, self._unexplained_at, list(self._offenders.values()))

    def save(self) -> None:
        try:
            write_private(self._path, msgspec.json.format(msgspec.json.encode(self.ledger)) + b"\n")
        except OSError as error:
            log.warning("%s: cannot be written (%s); a stop will lose the list of those kept out",
                        self._path, error.strerror or error)  # fmt: skip

    # --- adding and removing ---

    def blame(self, who: Who, why: str) -> float:
        """Keep a culprit out; returns for how many seconds."""
        self._forget_old()
        before = self._offenders.get(who)
        return self._keep_out(who, before.count + 1 if before is not None else 1, why)

    def suspect(self, who: Who, why: str) -> float:
        """Keep a suspect out, who may be innocent; returns for how many seconds."""
        self._forget_old()
        before = self._offenders.get(who)
        return self._keep_out(who, before.count + 1 if before is not None and before.count else 0, why)

    def _keep_out(self, who: Who, count: int, why: str) -> float:
        now = self._clock()
        seconds: float = min(LONGEST_S, FIRST_S * 2.0 ** min(max(0, count - 1), 30))
        self._offenders.pop(who, None)
        self._offenders[who] = Offender(who.kind, who.name, count, now, now + seconds, why)
        while len(self._offenders) > OFFENDERS_MAX:
            del self._offenders[next(iter(self._offenders))]
        return seconds

    def count_unexplained(self) -> bool:
        """Count a fail-stop without a culprit; False if there were too many lately."""
        now = self._clock()
        recent = [at for at in self._unexplained_at if 0 <= now - at < UNEXPLAINED_WITHIN_S]
        self._unexplained_at = [*recent, now]
        return len(self._unexplained_at) <= UNEXPLAINED_MAX

    def readmit(self, name: str) -> list[Who]:
        """Admit everyone with this name again, and forget their record."""
        found = [who for who in self.now() if who.name == name]
        for who in found:
            del self._offenders[who]
        if found:
            self.save()
        return found

    # --- queries ---

    def now(self) -> dict[Who, Offender]:
        """Clients and peers that are kept out now."""
        now = self._clock()
        return {who: one for who, one in self._offenders.items() if one.until > now}

    def refusal(self, kind: Literal["client", "peer"], name: str) -> str:
        """Return in one line why this client or peer is refused now; "" if admitted."""
        if not self._offenders:
            return ""
        one = self._offenders.get(Who(kind, name))
        if one is None or one.until <= self._clock():
            return ""
        # The text hides where the failure was, and stays the same, so that it is logged once.
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.until))
        cause = "its input" if one.count else "a turn with its input"
        return f"{kind} {name} is kept out until {until}: {cause} stopped this broker"

    def _forget_old(self) -> None:
        oldest = self._clock() - FORGOTTEN_AFTER_S
        for who in [who for who, one in self._offenders.items() if one.last_at < oldest]:
            del self._offenders[who]
