"""Identity and history: who this broker is, how far it has come, and what it remembers of its peers.

Every start of a broker takes the next epoch and a random id. The id of the first start names the history: it
is made together with the data folder. The position counts journalled turns, so it rises with everything that
a broker has acknowledged. A broker tells all this in the handshake, and its position while a link is up.

A peer remembers what it heard last, in its journalled state. A broker is accepted if its starts include the
last start that the peer remembers, and if that start reached the position that the peer remembers. (The
position alone does not tell: a broker that runs with an old backup continues from its position.) Everything
else is refused:

- **a clone**: another process of the same broker is linked and responsive;
- **an empty disk**: the history has another name;
- **an older history**: the start that the peer remembers is missing, or ended before the position that the
  peer remembers. A copy of the folder that ran meanwhile looks the same, and is refused for the same reason.

A broker refused for its history is fenced: it acknowledges nothing until the peer accepts it, or until an
operator lets it continue.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from roamcast.state import State

STARTS_TOLD = 64
"""Starts that a broker remembers and reports. A peer that missed more of them compares only the position."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of a broker."""

    id: int
    at: int
    """Position at which the process started."""


class ToldHistory(msgspec.Struct, frozen=True, array_like=True):
    """A broker's report of its own history. A simulated broker without history reports `ToldHistory()`."""

    history: int = 0
    """Id of the broker's first start."""
    epoch: int = 0
    """Number of starts so far."""
    starts: tuple[Start, ...] = ()
    """Last starts, including the current one at the end."""
    position: int = 0

    def reached(self, start: int) -> int | None:
        """Return the position at which this start ended, or the current one; None for an unknown start."""
        for place, one in enumerate(self.starts):
            if one.id == start:
                return self.starts[place + 1].at if place + 1 < len(self.starts) else self.position
        return None


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """Last known history of a peer."""

    history: int
    epoch: int
    start: int
    position: int

    @classmethod
    def of(cls, told: ToldHistory) -> Seen:
        return cls(told.history, told.epoch, told.starts[-1].id if told.starts else 0, told.position)


class History:
    """History of one broker, and what it knows of its peers' histories."""

    __state__ = State(
        "history",
        saved=("id", "first", "epoch", "starts", "position", "known", "fences", "is_settled"),
        derived=("promised",),
    )

    def __init__(self, id: str) -> None:
        self.id = id
        self.first = 0
        self.epoch = 0
        self.starts: list[Start] = []
        self.position = 0
        """Number of journalled turns. Turns that only record a peer's progress are not counted; otherwise two
        brokers would record each other's progress forever."""
        self.known: dict[str, Seen] = {}
        self.fences: dict[str, str] = {}
        """Peers that refuse this history, with the reason."""
        self.is_settled = False
        """False from the first start until a peer was met, or there was none to meet."""
        self._restore()

    def _restore(self) -> None:
        self.promised: int | None = None
        """On a replicated site, the position that its replicas have. Peers are told no later position,
        because they would refuse a promoted replica without it as an old copy."""

    # --- this broker ---

    def begin(self, start: int) -> None:
        """Record a start of the broker. Without an id, histories are not compared."""
        self.epoch += 1
        if start:
            self.first = self.first or start
            self.starts = [*self.starts[1 - STARTS_TOLD :], Start(start, self.position)]

    def expect(self, peers: Collection[str]) -> None:
        """Note the configured peers."""
        self.is_settled = self.is_settled or not peers

    def told(self) -> ToldHistory:
        return ToldHistory(self.first, self.epoch, tuple(self.starts), self.told_position)

    @property
    def told_position(self) -> int:
        """Return the position that peers may know."""
        return self.position if self.promised is None else self.promised

    @property
    def refusal(self) -> str:
        """Return why this broker must promise nothing now; "" if it may promise."""
        for peer, why in self.fences.items():
            return f"{peer} refuses the history of this broker: {why}"
        if not self.is_settled:
            return (
                "this broker began with an empty folder and has met none of its peers; it waits for a link,"
                f" or for 'roamcast broker accept-history {self.id}'"
            )
        return ""

    # --- peers ---

    def doubt(self, peer: str, told: ToldHistory, is_linked: bool) -> str:
        """Return why a peer with this history must not be linked, and what to do; "" if it may be linked.

        `is_linked`: another process with the peer's id is linked and responsive.
        """
        if is_linked:
            return (
                f"broker {peer} runs twice: another process with its id is linked here, which has epoch"
                f" {self.known[peer].epoch if peer in self.known else 'unknown'}; its folder was copied: stop"
                " one of the two"
            )
        seen = self.known.get(peer)
        if seen is None or not seen.history:
            return ""
        way_out = (
            f"start {peer} with its newest folder; or accept that what is missing is lost, with"
            f" 'roamcast broker accept-history {peer}' at {self.id}"
        )
        if told.history != seen.history:
            return f"broker {peer} has started with an empty folder, and its former data is gone: {way_out}"
        reached = told.reached(seen.start)
        if reached is None and seen.epoch <= told.epoch - len(told.starts):
            reached = told.starts[0].at if told.starts else 0
        if reached is None or reached < seen.position:
            return (
                f"broker {peer} has an older history than before, or another copy of it: it reports epoch"
                f" {told.epoch} and position {told.position}, {self.id} remembers epoch {seen.epoch} and"
                f" position {seen.position}: {way_out}"
            )
        return ""

    def link(self, peer: str, told: ToldHistory) -> None:
        """Record that the peer is linked: neither end refuses the other's history."""
        self.known[peer] = Seen.of(told)
        self.fences.pop(peer, None)
        self.is_settled = True

    def progress(self, peer: str, position: int) -> None:
        seen = self.known.get(peer)
        if seen is not None:
            self.known[peer] = msgspec.structs.replace(seen, position=max(position, seen.position))

    def is_progress(self, peer: str, position: int) -> bool:
        seen = self.known.get(peer)
        return seen is not None and position > seen.position

    def fence(self, peer: str, why: str) -> None:
        """Record that a peer refuses this broker's history."""
        self.fences[peer] = why

    def accept(self, broker: str, seen: Seen | None) -> None:
        """Accept a history on an operator's order: a peer's as it was refused, or this broker's own."""
        if broker == self.id:
            self.fences.clear()
            self.is_settled = True
        elif seen is not None:
            self.known[broker] = seen
        else:
            self.known.pop(broker, None)

    def forget(self, brokers: Collection[str]) -> None:
        for broker in brokers:
            self.known.pop(broker, None)
            self.fences.pop(broker, None)
