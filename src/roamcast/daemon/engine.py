"""The turns of a daemon: gather inputs, step the site once, write the journal, then release the effects.

Everything that arrives in one round of the event loop is one turn. The inputs of a turn are in the journal
before any of its effects leaves the process. If any call of the site raises, no other turn follows: the
process restarts from its journal. If that happens in `step` or `deadline`, nothing of the turn is journalled,
written, sent or told.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from time import monotonic
from typing import NamedTuple, NoReturn, Protocol

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    LinkFrames,
    MachineEffects,
    MachineInput,
    NewsGiven,
    Started,
    StatusAnnounced,
    Tick,
    Tree,
    encode_entry,
)
from roamcast.broker.links.end import KEPT_BYTES_MAX
from roamcast.broker.news import News
from roamcast.broker.seeking import IsHere
from roamcast.daemon.clock import BrokerClock
from roamcast.daemon.pressure import Pressure
from roamcast.errors import InputError
from roamcast.mqtt.codec.packets import Auth
from roamcast.mqtt.server.connection import PUBACK
from roamcast.mqtt.server.traffic import Note
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import freezing
from roamcast.storage.journal import Journal, JournalFailed

log = logging.getLogger("roamcast")

JOURNAL_RETRY_S = 1.0
SNAPSHOT_POLL_S = 1.0
TURN_S = 0.02
"""Target duration of a turn. The number of packets per turn is adapted to it, because packets differ in cost.
"""
PACKETS_PER_TURN = 512
"""Initial number of packets or bursts that one turn takes from all clients together."""
PACKETS_PER_TURN_MIN, PACKETS_PER_TURN_MAX = 8, 4096
"""Bounds of this number."""
MARK_S = 0.02
"""How long the watermark of the journal may stay behind: moving it costs a block of the next sync."""
ACKNOWLEDGED_S = 0.02
"""Maximum time that a client's acknowledgement waits for others, if it has no effect."""
TURN_BYTES_MAX = 4 << 20
"""A turn begins at once when this many bytes have been read: these bytes are held twice until the turn is
over."""
REPLICATED_TURN_BYTES = 256 << 10
"""This number with followers: they write one part while the leader steps the next one."""
LARGE_READ_BYTES = 16 << 10
"""Reads of at least this size count towards TURN_BYTES_MAX. Smaller reads are at most one per client."""
LONE_READ_BYTES = 1 << 10
"""With followers, the input of a larger read waits a moment for input of other connections, because each turn
costs a message and a sync at every follower."""
GATHER_ROUNDS = 10
"""Number of rounds of the loop that this input waits, about 50 us."""
COMPANY_S = 0.001
"""Maximum time that smaller reads wait for the release of an earlier turn, to share the next turn with the
answers to it."""
PAUSE_S = 0.0002
"""After a longer idle time a message gets a turn at once. Otherwise messages share a turn and a sync."""


class Output(Protocol):
    """Receives the effects of a turn."""

    def write(self, writes: Mapping[int, list[bytes]]) -> None:
        """Write the output of a turn, joined for each connection."""

    def close(self, connection: int) -> None: ...
    def hold(self, connection: int) -> None:
        """Pause reading from this client: its input cannot be processed now."""

    def hold_back(self, connection: int) -> bool:
        """Stop reading from this client until the next turn is over.

        False if this turn must not continue with the client's input: that input is pushed when the answers
        are read.
        """

    def hold_link(self, peer: str) -> None: ...
    def release(self) -> None:
        """Resume reading from all clients, and write pending output to the links."""

    def write_link(self, peer: str) -> None:
        """Write pending output to the link of this peer."""

    def close_link(self, peer: str, why: str) -> None: ...
    def note(self, note: Note) -> None:
        """Log that a client connected or disconnected."""

    def answer(self, answer: IsHere) -> None:
        """Answer a question about where a session is."""

    def news(self, peer: str, news: News) -> None:
        """Pass on a report of another broker, and the peer it came over."""

    def prove_again(self, connection: int, packet: Auth) -> None:
        """Re-authenticate a client."""

    def tree(self, tree: Tree) -> None:
        """Note a new result of the election."""


class ReleaseGate(Protocol):
    """Decides, for a replicated site, when the effects of a turn may be released."""

    def writing(self, entry: bytes) -> None:
        """Note that this entry is about to be written to the local journal."""

    def releasable(self) -> int:
        """Number of the last entry whose effects may be released; -1 if none."""

    def failed(self, why: str) -> None:
        """Report that the local journal cannot be written: another replica has to take over."""


class Waiting(NamedTuple):
    """A turn whose effects wait for other replicas."""

    sequence: int
    effects: MachineEffects
    promised: dict[str, tuple[int, int]]
    """For each link: the last message sent, and the last received."""
    position: int
    """Position in the history."""


OnFailure = Callable[[Exception, float, list[MachineInput]], NoReturn]
"""Ends the process because the site raised, at this time and with these inputs, which are not journalled."""


def shared(packets: int, turn_s: float, is_flooded: bool) -> int:
    """Return how many packets the next turn takes from all clients; 0 means no limit, and stays.


    The number is halved after a slow turn. It moves back to PACKETS_PER_TURN after turns without a flood.
    """
    if not packets:
        return 0
    if turn_s > TURN_S:
        return max(PACKETS_PER_TURN_MIN, packets // 2)
    if is_flooded:
        return min(PACKETS_PER_TURN_MAX, packets + packets // 4) if turn_s < TURN_S / 3 else packets
    change = max(1, abs(packets - PACKETS_PER_TURN) // 16)
    if packets > PACKETS_PER_TURN:
        return max(PACKETS_PER_TURN, packets - change)
    return min(PACKETS_PER_TURN, packets + change)


def _raise(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
    raise error


def _nothing() -> None:
    """Discard rows: there is no event log."""


class Engine:
    __slots__ = (
        "_acknowledged", "_acknowledging", "_before_snapshot", "_company", "_context", "_deadline",
        "_endpoint", "_failure", "_gate", "_has_failed", "_held", "_idle_since_s", "_inputs", "_is_scheduled",
        "_large_bytes", "_late", "_look_at_bytes", "_look_at_memory", "_loop", "_marking", "_now",
        "_on_failure", "_output", "_pending", "_poll", "_records", "_retry", "_timer", "_waiting",
        "_wanted_at", "clock", "journal", "on_snapshot", "pressure", "site", "snapshots", "turns",
    )  # fmt: skip

    def __init__(
        self,
        site: AnyMachine,
        journal: Journal | None,
        output: Output,
        records: Callable[[list[Row]], None] | None = None,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        clock: BrokerClock | None = None,
        on_failure: OnFailure = _raise,
        before_snapshot: Callable[[], None] | None = None,
        gate: ReleaseGate | None = None,
        look_at_memory: Callable[[], int] | None = None,
    ) -> None:
        """`before_snapshot` writes whatever could not be recovered from the journal after the snapshot.

        `look_at_memory` examines the memory of queues and connections. It returns how many bytes may be added
        to queues before the next call.
        """
        self._gate = gate
        self._waiting: deque[Waiting] = deque()
        self.on_snapshot: Callable[[], None] = _nothing
        """Called when a snapshot has been written or has failed."""
        self.site = site
        self.journal = journal
        if journal is not None:
            journal.mark_after_s = MARK_S
        self.turns = 0
        self.snapshots: dict[str, int] = {"written": 0, "failed": 0}
        """Number of snapshots since the process began, by result."""
        self.pressure = Pressure(site, self.push, output.hold, output.release, kept_bytes_max)
        self._look_at_memory = look_at_memory
        self._look_at_bytes = 0 if look_at_memory is not None else sys.maxsize
        """Size of the site's queues at which memory is examined again."""
        self._large_bytes = 0
        """Bytes of large reads for the next turn."""
        self._output = output
        self._records = records
        self._endpoint = site.endpoint
        self.clock = clock or BrokerClock(max(time.time(), self._endpoint.now))
        self._on_failure = on_failure
        self._before_snapshot = before_snapshot or _nothing
        self._has_failed = False
        """True once the site has raised, or the process ends: no further turn is taken."""
        self._inputs: list[MachineInput] = []
        """Inputs of the present turn that are not journalled yet."""
        self._now = self._endpoint.now
        self._pending: list[MachineInput] = []
        self._held: MachineEffects | None = None
        """Effects of a turn that is not in the journal yet."""
        self._late: list[tuple[bytes, MachineEffects]] = []
        """Effects of later turns, and the inputs of these turns that must be journalled."""
        self._failure = ""
        """Reason why new acknowledgements are refused."""
        self._retry: asyncio.TimerHandle | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._marking: asyncio.TimerHandle | None = None
        self._acknowledging: asyncio.TimerHandle | None = None
        self._company: asyncio.TimerHandle | None = None
        """Set while reads wait for the release of an earlier turn."""
        self._acknowledged: dict[int, ClientFrames] = {}
        """By connection: acknowledgements that wait for others, and precede what else comes from there."""
        self._is_scheduled = False
        self._idle_since_s = 0.0
        """When the last turn ended or was released, on the monotonic clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        """Deadline that the timer is set for."""
        self._wanted_at: float | None = None
        """Deadline that the site named last."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """Context that all turns share, so that no turn has to create one."""

    @property
    def is_promising(self) -> bool:
        """False while the journal cannot be written: then nothing is acknowledged."""
        return not self._failure

    @property
    def failure(self) -> str:
        return self._failure

    def push(self, item: MachineInput) -> None:
        """Queue an input for the next turn."""
        if self._acknowledged:
            self._take_acknowledged()
        self._pending.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.turn, context=self._context)

    def take(self, item: ClientFrames, now_s: float) -> None:
        """Like `push`, but begin the turn at once if the loop was idle for a while: there is no other input
        to wait for.

        A lone PUBACK without further effects waits for others: a turn of its own would cost as much as the
        message did, and with `sync = "group"` a sync. A message that comes alone does not wait for it. After
        a crash the acknowledged message may be sent again.
        """
        connection, data = item.connection, item.data
        size, is_scheduled = len(data), self._is_scheduled
        if size == 4 and not is_scheduled and data[0] == PUBACK and not self._is_awaited(connection):
            earlier = self._acknowledged.get(connection)
            self._acknowledged[connection] = (
                item if earlier is None else ClientFrames(connection, earlier.data + data)
            )
            if self._acknowledging is None:
                self._acknowledging = self._loop.call_later(ACKNOWLEDGED_S, self._acknowledge)
            return
        is_alone = not is_scheduled and now_s - self._idle_since_s > PAUSE_S
        if self._acknowledged and (not is_alone or connection in self._acknowledged):
            self._take_acknowledged()
        self._pending.append(item)
        if size > LARGE_READ_BYTES:
            self._large_bytes += size
            if self._large_bytes > (TURN_BYTES_MAX if self._gate is None else REPLICATED_TURN_BYTES):
                self.turn()
                return
        if is_scheduled:
            return
        if self._waiting and size < LONE_READ_BYTES:
            if self._company is None:
                self._company = self._loop.call_later(COMPANY_S, self._wait_no_longer)
        elif self._gate is not None and size >= LONE_READ_BYTES:
            self._is_scheduled = True
            self._gather(len(self._pending), GATHER_ROUNDS)
        elif is_alone:
            self.turn()
        else:
            self._is_scheduled = True
            self._loop.call_soon(self.turn, context=self._context)

    def _take_acknowledged(self) -> None:
        self._pending += self._acknowledged.values()
        self._acknowledged.clear()

    def _gather(self, pending: int, rounds: int) -> None:
        """Begin the turn when further input has been read, or after this number of rounds of the loop."""
        if rounds and len(self._pending) == pending:
            self._loop.call_soon(self._gather, pending, rounds - 1, context=self._context)
        elif self._is_scheduled:
            self.turn()

    def _is_awaited(self, connection: int) -> bool:
        """True if something is sent to the client as soon as it acknowledges."""
        found = self._endpoint.connections.get(connection)
        return found is None or self.site.awaits_acknowledgement(found.client)

    def _acknowledge(self) -> None:
        self._acknowledging = None
        self._take_acknowledged()
        self._take_pending()

    def _wait_no_longer(self) -> None:
        self._company = None
        self._take_pending()

    def _take_pending(self) -> None:
        if self._pending and not self._is_scheduled:
            self.turn()

    def turn(self) -> None:
        self._is_scheduled = False
        self._large_bytes = 0
        if self._has_failed:
            return
        try:
            journal = self.journal
            if journal is not None and journal.failed is not None:
                self._stop_promising(journal.failed)
                self._turn_without_promises()
            else:
                self._promise(journal)
        except Exception as error:
            self.fail(error)

    def halt(self) -> None:
        """Take no more turns, because the process ends."""
        self._has_failed = True

    def fail(self, error: Exception) -> NoReturn:
        """Stop because the site raised: none of its effects may be released."""
        inputs, self._inputs = self._inputs, []
        if isinstance(error, InputError) and inputs and isinstance(inputs[0], Started):
            raise error  # The settings do not fit the state: the operator can correct the settings.
        self._has_failed, self._failure = True, "a turn failed, and the broker starts again"
        self._on_failure(error, self._now, inputs)

    def _promise(self, journal: Journal | None) -> None:
        """Process pending inputs, journal them, and release their effects."""
        inputs, self._pending = self._pending, []
        effects = self._step(inputs)
        durable, gate = effects.durable, self._gate
        if durable and journal is not None:
            entry = encode_entry(self._now, durable)
            if gate is not None:
                gate.writing(entry)
            try:
                journal.write(entry)
            except JournalFailed as error:
                if gate is not None:
                    gate.failed(str(error))
                self._held = effects
                self._stop_promising(str(error))
                return
        self._inputs = []
        if gate is not None:
            self._wait(effects)
        else:
            if effects.writes:
                self._output.write(effects.writes)
            if durable:
                self.site.journalled(self.pressure.over)
            self._let_out(effects)
        if self.site.links.ends:
            self.pressure.look(inputs, effects)
        if durable and journal is not None:
            if journal.is_unmarked and self._marking is None:
                self._marking = self._loop.call_later(MARK_S, self._mark, journal)
            if journal.wants_snapshot:
                self._snapshot(journal)
        if self.site.taken_bytes > self._look_at_bytes:
            self.look_at_memory()
        self._idle_since_s = monotonic()

    def look_soon(self) -> None:
        """Look at memory when this turn is over."""
        self._look_at_bytes = -1

    def look_at_memory(self) -> None:
        if self._look_at_memory is not None:
            self._look_at_bytes = self.site.taken_bytes + self._look_at_memory()

    def _mark(self, journal: Journal) -> None:
        self._marking = None
        journal.mark()

    def _step(self, inputs: list[MachineInput]) -> MachineEffects:
        now = self.clock()
        if now > self._now:
            self._now = now
        self.turns += 1
        self._inputs = inputs
        effects = self.site.step(self._now, inputs)
        self._wanted_at = self.site.deadline()
        endpoint = self._endpoint
        if effects.unread or endpoint.packets_per_turn != PACKETS_PER_TURN:
            turn_s, is_flooded = self.clock() - now, bool(effects.unread)
            endpoint.packets_per_turn = shared(endpoint.packets_per_turn, turn_s, is_flooded)
        return effects

    def _let_out(self, effects: MachineEffects, has_gone_on: bool = False) -> None:
        """Release all effects except writes, which are released first."""
        if not has_gone_on and (effects.unread or effects.deferred):
            self._go_on(effects)
        if effects.closes or effects.notes or effects.answers or effects.auths or effects.news:
            self._tell(effects)
        for peer, why in effects.link_closes:
            self._output.close_link(peer, why)
        for peer, end in self.site.links.ends.items():
            if end.has_more:
                self._output.write_link(peer)
        if effects.records and self._records is not None:
            self._records(effects.records)
        if effects.tree is not None:
            self._output.tree(effects.tree)
        if self._wanted_at != self._deadline:
            self._set_timer()

    def _tell(self, effects: MachineEffects) -> None:
        output = self._output
        for connection in effects.closes:
            output.close(connection)
        for note in effects.notes:
            output.note(note)
        for answer in effects.answers:
            output.answer(answer)
        for peer, news in effects.news:
            output.news(peer, news)
        for connection, packet in effects.auths:
            output.prove_again(connection, packet)

    def _go_on(self, effects: MachineEffects) -> None:
        """Queue the inputs that the next turns continue with. They have no visible effect."""
        for connection in effects.unread:
            if self._output.hold_back(connection):
                self.push(ClientFrames(connection, b""))
        for item in effects.deferred:
            self.push(item)

    # --- where the site is replicated ---

    def _wait(self, effects: MachineEffects) -> None:
        """Hold the effects of a turn until the other replicas have its entry."""
        site, journal = self.site, self.journal
        promised = {peer: end.end_turn() for peer, end in site.links.ends.items()}
        last = journal.last_sequence if journal is not None else 0
        self._waiting.append(Waiting(last, effects, promised, site.history.position))
        if effects.unread or effects.deferred:
            self._go_on(effects)
        if self._wanted_at != self._deadline:
            self._set_timer()
        self.release()

    def release(self) -> None:
        """Release, in order, the effects that may leave now."""
        gate, waiting = self._gate, self._waiting
        if gate is None or not waiting or self._has_failed:
            return
        last = gate.releasable()
        while waiting and waiting[0].sequence <= last:
            one = waiting.popleft()
            ends = self.site.links.ends
            for peer, promised in one.promised.items():
                if peer in ends:
                    ends[peer].promised = promised
            self.site.history.promised = one.position
            self._output.write(one.effects.writes)
            if one.effects.durable:
                self.site.journalled(self.pressure.over)
            self._let_out(one.effects, has_gone_on=True)
            # Clients answer to what they get now, and their answers share a turn.
            self._idle_since_s = monotonic()
        if not waiting and self._pending and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.turn, context=self._context)

    # --- while the journal cannot be written ---

    def _stop_promising(self, why: str) -> None:
        """Hold back all effects of the turn: the site may be ahead of the journal."""
        if not self._failure:
            log.error("journal unavailable, refusing new acknowledgements; stored messages are safe: %s", why)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._deadline = None
            self._retry = self._loop.call_later(JOURNAL_RETRY_S, self._try_again)
        self._failure = why

    def _turn_without_promises(self) -> None:
        """Process input that needs no journal. Clients that send anything else have to wait."""
        taken: list[MachineInput] = []
        held: list[MachineInput] = []
        waiting: set[int] = set()
        connections = self._endpoint.connections
        for item in self._pending:
            if isinstance(item, ClientFrames):
                connection = None if item.connection in waiting else connections.get(item.connection)
                if connection is not None and connection.promises_nothing(item.data):
                    taken.append(item)
                    continue
                waiting.add(item.connection)
                self._output.hold(item.connection)
            elif isinstance(item, StatusAnnounced | NewsGiven):
                taken.append(item)
                continue
            elif isinstance(item, LinkFrames):
                self._output.hold_link(item.peer)
            elif isinstance(item, ClientConnected | ConnectionLost):
                waiting.add(item.connection)
            held.append(item)
        self._pending = held
        if not taken:
            return
        effects = self._step(taken)
        self._inputs = []
        if effects.durable:
            # A packet turned out to be malformed, and its connection has ended.
            self._late.append((encode_entry(self._now, effects.durable), effects))
        else:
            self._output.write(effects.writes)
            self._go_on(effects)
            self._tell(effects)

    def _try_again(self) -> None:
        if self._has_failed:
            return
        try:
            self._write_again()
        except Exception as error:
            self.fail(error)

    def _write_again(self) -> None:
        journal = self.journal
        assert journal is not None
        self._retry = None
        try:
            journal.try_again()
        except JournalFailed as error:
            self._failure = str(error)
            if journal.wants_snapshot:
                self._snapshot(journal)
        self._let_out_late(journal)
        if journal.failed is not None:
            self._retry = self._loop.call_later(JOURNAL_RETRY_S, self._try_again)
            return
        self._failure = ""
        log.info("the journal can be written again")
        self._output.release()
        self.turn()

    def _let_out_late(self, journal: Journal) -> None:
        """Release, in order, the effects of turns that are now in the journal."""
        while not journal.pending_bytes:
            if self._held is not None:
                effects, self._held = self._held, None
                self._output.write(effects.writes)
                self.site.journalled(self.pressure.over)
                self._let_out(effects)
            if not self._late or journal.failed is not None:
                return
            entry, self._held = self._late.pop(0)
            try:
                journal.write(entry)
            except JournalFailed as error:
                self._failure = str(error)

    # --- snapshots ---

    def take_snapshot(self) -> None:
        """Write a snapshot now, unless one is being written."""
        if self.journal is not None and not self.journal.is_writing_snapshot:
            self._snapshot(self.journal)

    def _snapshot(self, journal: Journal) -> None:
        """Write a snapshot in a forked process, so that the broker keeps serving."""
        self._before_snapshot()
        try:
            ticket = journal.begin_snapshot()
            ticket.write_in_child(lambda: freezing(self.site))
        except JournalFailed as error:
            self.snapshots["failed"] += 1
            log.warning("no snapshot: %s", error)
            return
        child = ticket.child
        if child is not None:
            self._loop.add_reader(child.fileno(), self._on_snapshot, journal, child.fileno())
            self._poll_later(journal, child.fileno())

    def _poll_later(self, journal: Journal, file: int) -> None:
        """Poll the child later: a child that hangs never reports, and one that has reported may need a moment
        to end."""
        self._poll = self._loop.call_later(SNAPSHOT_POLL_S, self._on_snapshot, journal, file)

    def _on_snapshot(self, journal: Journal, file: int) -> None:
        # Before the file is closed: otherwise the loop would watch the next file with this number.
        self._loop.remove_reader(file)
        if self._poll is not None:
            self._poll.cancel()
        outcome = journal.poll_snapshot()
        if outcome is None:
            self._poll_later(journal, file)
        elif outcome.error is not None:
            self.snapshots["failed"] += 1
            log.warning("no snapshot: %s", outcome.error)
        else:
            self.snapshots["written"] += 1
            log.info("snapshot of %d bytes written in %.1f s", outcome.size_bytes, outcome.seconds)
        if outcome is not None:
            self.on_snapshot()

    def stop(self) -> None:
        """Finish pending turns and write a snapshot, so that the next start has nothing to replay."""
        self._take_acknowledged()
        self.turn()
        timers = (self._timer, self._retry, self._poll, self._marking, self._acknowledging, self._company)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        if self.journal is not None and self.is_promising:
            self._before_snapshot()
            try:
                self.journal.write_snapshot(freezing(self.site))
            except JournalFailed as error:
                log.warning("%s", error)

    # --- time ---

    def _set_timer(self) -> None:
        deadline = self._wanted_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            self._timer = self._loop.call_later(self.clock.seconds_until(deadline), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._deadline = None
        self.push(Tick())
