"""Unacknowledged QoS 1 and 2 messages to a client: packet ids in the order of sending.

Packet ids are given in turn, so runs of them stand for runs of notifications, and
nothing is kept for a single one. Acknowledgements nearly always come in order.
"""

from __future__ import annotations

import msgspec

from roamcast.mqtt.codec.errors import protocol_error
from roamcast.mqtt.codec.packet_ids import PACKET_ID_MAX, consecutive, following
from roamcast.protocol.notification import PICKED, Burst
from roamcast.state import State

Identity = tuple[str, int, int, int]
"""Publisher, incarnation, number and way: a client gets one copy by its own subscriptions, one from each
group that picked the client, and those that it recalls. A full queue may drop any of them."""


class Run(msgspec.Struct, gc=False):
    """Consecutive packet ids, allocated to consecutive notifications of one publisher."""

    packet_id: int
    count: int
    sequence: int
    """Sequence of the first notification, on the core's access link."""
    qos: int
    publisher: str
    incarnation: int
    number: int
    way: int
    """The marks of `PICKED`."""

    def holds(self, packet_id: int) -> bool:
        return self.qos > 0 and (packet_id - self.packet_id) % PACKET_ID_MAX < self.count

    def skip(self, count: int) -> None:
        self.packet_id = following(self.packet_id, count)
        self.count -= count
        self.sequence += count
        self.number += count


class PackedInFlight(msgspec.Struct, frozen=True, array_like=True):
    """Form that travels with the session, without a connection."""

    next_id: int = 1
    resend: list[tuple[str, int, int, int, int, int]] = []
    """Identity, packet id and QoS of each message."""
    early: list[int] = []
    released: list[int] = []


NOTHING_PACKED = PackedInFlight()


class InFlight:
    """The outgoing QoS 1 and 2 state of one session."""

    __slots__ = ("_early", "_next", "_places", "_released", "_runs", "count", "resend")

    __state__ = State("mqtt-in-flight", derived=("_places",))

    def __init__(self, packed: PackedInFlight | None = None) -> None:
        packed = packed or NOTHING_PACKED
        self._runs: list[Run] = []
        """Runs in the order of sending; their packet ids are consecutive, unless they were sent again. A
        list, because most clients have nothing in flight, and an empty deque takes 600 bytes more."""
        self.count = 0
        self._next = packed.next_id
        self._early: dict[int, None] = dict.fromkeys(packed.early) if packed.early else {}
        """Packet ids acknowledged before others that were sent earlier."""
        self._released: dict[int, None] = dict.fromkeys(packed.released) if packed.released else {}
        """Packet ids with PUBREC (QoS 2): the client has these messages, which are never sent again."""
        self.resend: dict[Identity, list[tuple[int, int]]] = {}
        """Messages in flight when the connection ended, with packet id and QoS. Messages passed over in
        between have QoS 0 here: they are never sent again. A member of two shared groups may have a
        notification twice; entries are in the order of sending."""
        for one in packed.resend:
            self.resend.setdefault(one[:4], []).append(one[4:])
        self._restore()

    def _restore(self) -> None:
        self._runs = list(self._runs)  # Older snapshots contain a deque.
        self._places: dict[int, Run] | None = None
        """The run of each packet id, if the client acknowledges out of order, until nothing is in flight.
        Acknowledged packet ids stay here, though their runs no longer contain them."""

    def position(self) -> tuple[int, ...]:
        """Figures that change whenever a message is sent or acknowledged."""
        return self._next, self.count, len(self._early), len(self._released), len(self.resend)

    @property
    def has_qos_2(self) -> bool:
        """True if a QoS 2 message was sent and is not finished; only while there is no connection."""
        return bool(self._released) or any(qos == 2 for known in self.resend.values() for _, qos in known)

    def pack(self) -> PackedInFlight:
        if self._runs:
            self.rewind()
        resend = [(*identity, *one) for identity, known in self.resend.items() for one in known]
        return PackedInFlight(self._next, resend, list(self._early), list(self._released))

    # --- sending ---

    def send_together(self, burst: Burst, sequence: int, qos: int) -> int:
        """Allocate packet ids to a burst sent for the first time; returns the first, or 0: then use
        `send`."""
        count, packet_id = burst.count, self._next
        if self.count + count > PACKET_ID_MAX // 2:
            return 0
        self._add(packet_id, count, sequence, qos, burst, burst.number)
        self._next = (packet_id - 1 + count) % PACKET_ID_MAX + 1
        self.count += count
        return packet_id

    def _add(self, packet_id: int, count: int, sequence: int, qos: int, burst: Burst, number: int) -> None:
        """Note notifications of a burst, from this number on, in the last run if they continue it.

        So the state does not depend on how a delivery was divided, which plans kept by a session decide.
        """
        way, runs = burst.marks[0] & PICKED, self._runs
        if runs:
            run = runs[-1]
            if (
                run.number + run.count == number
                and run.sequence + run.count == sequence
                and run.qos == qos
                and run.publisher == burst.publisher
                and run.incarnation == burst.incarnation
                and run.way == way
                and (not qos or following(run.packet_id, run.count) == packet_id)
            ):
                run.count += count
                if self._places is not None and qos:
                    self._places.update(dict.fromkeys(consecutive(packet_id, count), run))
                return
        run = Run(packet_id, count, sequence, qos, burst.publisher, burst.incarnation, number, way)
        runs.append(run)
        self._place(run)

    def send(self, burst: Burst, sequence: int, qos: int) -> list[tuple[int, int]]:
        """Allocate packet ids to a burst sent for the first time; returns runs of (packet id, count)."""
        packet_id = self.send_together(burst, sequence, qos)
        if packet_id:
            return [(packet_id, burst.count)]
        runs = self._free_runs(burst.count)
        number = burst.number
        for packet_id, count in runs:
            self._add(packet_id, count, sequence, qos, burst, number)
            sequence += count
            number += count
            self._next = following(packet_id, count)
        self.count += burst.count
        return runs

    def pass_over(self, burst: Burst, sequence: int) -> int:
        """Pass over a burst that needs no acknowledgement; returns the last fully acknowledged sequence, or
        0."""
        last = sequence + burst.count - 1
        if not self._runs:
            return last
        self._add(0, burst.count, sequence, 0, burst, burst.number)
        return 0

    def _free_runs(self, count: int) -> list[tuple[int, int]]:
        """Return runs of unused packet ids."""
        used = {following(run.packet_id, i) for run in self._runs if run.qos for i in range(run.count)}
        runs: list[tuple[int, int]] = []
        packet_id = self._next
        for _ in range(PACKET_ID_MAX):
            if count == 0:
                break
            if packet_id not in used:
                if runs and following(*runs[-1]) == packet_id:
                    runs[-1] = (runs[-1][0], runs[-1][1] + 1)
                else:
                    runs.append((packet_id, 1))
                count -= 1
            packet_id = following(packet_id, 1)
        return runs

    # --- acknowledgements ---

    @property
    def expected(self) -> int:
        """Packet id to be acknowledged next, or 0."""
        return self._runs[0].packet_id if self._runs else 0

    def expected_run(self, count_max: int) -> int:
        """Count the consecutive QoS 1 messages from the expected one on, up to `count_max`."""
        count, packet_id = 0, self.expected
        for run in self._runs:
            if run.packet_id != packet_id or run.qos != 1 or count >= count_max:
                break
            count += run.count
            packet_id = following(packet_id, run.count)
        return count

    def acknowledge_last(self, data: bytes, position: int) -> int:
        """Return the sequence of the only message in flight if it has QoS 1 and the PUBACK here is for it;
        else 0."""
        runs = self._runs
        if len(runs) != 1 or data[position : position + 2] != b"\x40\x02" or len(data) < position + 4:
            return 0
        run = runs[0]
        if run.count != 1 or run.qos != 1:
            return 0
        if data[position + 2] << 8 | data[position + 3] != run.packet_id:
            return 0
        runs.clear()
        self._places = None
        self.count -= 1
        return run.sequence

    def acknowledge_in_order(self, count: int) -> int:
        """Acknowledge the next `count` messages (or all there are); returns the last sequence of them."""
        sequence = 0
        while count and self._runs:
            run = self._runs[0]
            done = min(count, run.count)
            sequence = run.sequence + done - 1
            self._pop(run, done)
            count -= done
            sequence = self._take_early(sequence)
        return sequence

    def complete(self, packet_id: int) -> int:
        """Handle PUBCOMP: like `acknowledge`, after PUBREC."""
        if packet_id not in self._released and self._find(packet_id) is not None:
            raise protocol_error(f"packet id {packet_id}: PUBCOMP came before PUBREC")
        return self.acknowledge(packet_id, 2)

    def acknowledge(self, packet_id: int, qos: int) -> int:
        """Handle PUBACK, or the end of QoS 2; returns the last fully acknowledged sequence, or 0."""
        is_expected = packet_id == self.expected
        run = self._runs[0] if is_expected else self._find(packet_id)
        if run is not None and run.qos != qos:
            raise protocol_error(f"packet id {packet_id} has QoS {run.qos}: that is no answer to it")
        self._released.pop(packet_id, None)
        if is_expected:
            return self.acknowledge_in_order(1)
        if run is not None:
            self._early[packet_id] = None
        return 0

    def release(self, packet_id: int) -> bool:
        """Handle PUBREC; returns whether the message was in flight with QoS 2, so that PUBREL may follow."""
        run = self._find(packet_id)
        if run is None:
            return False
        if run.qos != 2:
            raise protocol_error(f"packet id {packet_id} has QoS {run.qos}: a PUBREC is no answer to it")
        self._released[packet_id] = None
        return True

    def is_released(self, packet_id: int) -> bool:
        return packet_id in self._released

    def settle_early(self) -> int:
        """Return, after sending again, the last fully acknowledged sequence, or 0."""
        return self._take_early(0)

    def _take_early(self, sequence: int) -> int:
        while self._runs:
            run = self._runs[0]
            if run.qos == 0:
                sequence = run.sequence + run.count - 1
                del self._runs[0]
            elif run.packet_id in self._early:
                del self._early[run.packet_id]
                sequence = run.sequence
                self._pop(run, 1)
            else:
                break
        return sequence

    def _pop(self, run: Run, count: int) -> None:
        self.count -= count
        if count < run.count:
            run.skip(count)
            return
        del self._runs[0]
        if self._places is not None:
            run.count = 0
            if not self._runs:
                self._places = None

    def _place(self, run: Run) -> None:
        if self._places is not None and run.qos:
            self._places.update(dict.fromkeys(consecutive(run.packet_id, run.count), run))

    def _find(self, packet_id: int) -> Run | None:
        """Return the run of a packet id that is in flight and not acknowledged."""
        if packet_id in self._early:
            return None
        # PUBRECs come in the order of sending: where runs are short and therefore many, the wanted run is
        # behind as many runs as have been released.
        likely = self._runs[len(self._released)] if len(self._released) < len(self._runs) else None
        if likely is not None and likely.holds(packet_id):
            return likely
        if self._places is None:
            self._places = {}
            for run in self._runs:
                self._place(run)
        found = self._places.get(packet_id)
        return found if found is not None and found.holds(packet_id) else None

    # --- after a reconnect ---

    def rewind(self) -> None:
        """Prepare for sending everything again after the connection ended; packet ids are kept."""
        resend: dict[Identity, list[tuple[int, int]]] = {}
        for run in self._runs:
            for i in range(run.count):
                identity = (run.publisher, run.incarnation, run.number + i, run.way)
                known = (following(run.packet_id, i) if run.qos else 0, run.qos)
                resend.setdefault(identity, []).append(known)
        # Messages not handed over again since the last time follow.
        for identity, left in self.resend.items():
            resend.setdefault(identity, []).extend(left)
        self.resend = resend
        self._runs.clear()
        self._places = None
        self.count = 0

    def send_again(self, burst: Burst, sequence: int) -> tuple[int, int, bool] | None:
        """Return the packet id and QoS of a burst with one notification, and whether the client already has
        it.

        None if it was not in flight; then no later one was, because the order is kept.
        """
        identity = _identity(burst)
        known = self.resend.get(identity)
        if known is None:
            self._forget_resend()
            return None
        packet_id, qos = known.pop(0)
        if not known:
            del self.resend[identity]
        run = Run(packet_id, 1, sequence, qos, *identity)
        self._runs.append(run)
        self._place(run)
        self.count += 1 if qos else 0
        return packet_id, qos, not qos or packet_id in self._early or packet_id in self._released

    def may_go_elsewhere(self, burst: Burst) -> bool:
        """True if another client may get it now: this client does not have it, and may never answer."""
        known = self.resend.get(_identity(burst), [(0, 1)])
        return any(qos == 1 and packet_id not in self._early for packet_id, qos in known)

    def _forget_resend(self) -> None:
        for known in self.resend.values():
            for packet_id, _ in known:
                self._early.pop(packet_id, None)
                self._released.pop(packet_id, None)
        self.resend.clear()


def _identity(burst: Burst) -> Identity:
    return burst.publisher, burst.incarnation, burst.number, burst.marks[0] & PICKED
