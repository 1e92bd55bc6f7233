"""Retained messages in slices: nobody waits for them, and no live message is repeated or overtaken."""

from __future__ import annotations

from tests.mqtt.wire import read_all

from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ClientSlowed,
    ConnectionLost,
    MachineInput,
    Started,
    Tick,
)
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.retained import SLICE_VISITS
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec.packets import Connect, Puback, Publish, Subscribe, SubscriptionEntry, Unsubscribe
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.protocol.effects import Input
from roamcast.protocol.snapshot import state_hash

COUNT = 4 * SLICE_VISITS
WRITER, READER = 1, 2


class Site:
    """A broker and what its clients got; what it journalled is replayed at the end."""

    def __init__(self) -> None:
        self.settings = MachineSettings("a")
        self.machine = BrokerMachine(self.settings)
        self.journal: list[tuple[float, list[MachineInput | Input]]] = []
        self.got: dict[int, list[Publish]] = {}
        self.turns = 0
        self.step(Started(self.settings))
        self.connect(WRITER, "writer")
        self.connect(READER, "reader")

    def connect(self, number: int, name: str, receive_maximum: int = 65_535) -> None:
        connect = Connect(5, name, False, session_expiry=3600, receive_maximum=receive_maximum)
        self.step(ClientConnected(number, connect, Identity(name)))

    def step(self, *inputs: MachineInput) -> None:
        self.turns += 1
        effects = self.machine.step(float(self.turns), inputs)
        if effects.durable:
            self.journal.append((float(self.turns), list(effects.durable)))
        for number, parts in effects.writes.items():
            came = [one for one in read_all(b"".join(parts)) if isinstance(one, Publish)]
            self.got[number] = self.got.get(number, []) + came
        if effects.unread:
            self.step(*(ClientFrames(number, b"") for number in effects.unread))

    def send(self, number: int, *packets: object) -> None:
        self.step(ClientFrames(number, b"".join(write(one, 5) for one in packets)))  # type: ignore[arg-type]

    def retain(self, first: int = 0, count: int = COUNT, body: bytes = b"old") -> None:
        self.send(WRITER, *(Publish(f"r/{n:05}", body, 0, True) for n in range(first, first + count)))

    def subscribe(self, *names: str, qos: int = 0, number: int = READER) -> None:
        self.send(number, Subscribe(1, tuple(SubscriptionEntry(name, qos) for name in names)))

    def go_on(self, turns_max: int = 1000) -> int:
        """Give the machine the turns that it asks for; how many that were."""
        count = 0
        while self.machine.deadline() == 0.0 and count < turns_max:
            self.step(Tick())
            count += 1
        return count

    def topics(self, number: int = READER) -> list[str]:
        return [one.topic for one in self.got.get(number, ())]

    def check_replay(self) -> None:
        """A broker that is made of the journal has the same state."""
        replayed = BrokerMachine(self.settings)
        for now, inputs in self.journal:
            replayed.step(now, inputs)
        assert state_hash(replayed) == state_hash(self.machine)


ALL = [f"r/{n:05}" for n in range(COUNT)]


def test_a_recall_takes_several_turns_and_comes_to_everything_once() -> None:
    site = Site()
    site.retain()
    site.subscribe("r/#")
    assert len(site.topics()) == SLICE_VISITS
    assert site.go_on() >= 3
    assert site.topics() == ALL
    assert all(one.retain for one in site.got[READER])
    site.check_replay()


def test_what_is_written_meanwhile_is_neither_repeated_nor_overtaken() -> None:
    site = Site()
    site.retain()
    site.subscribe("r/#")
    last = ALL[-1]
    site.send(WRITER, Publish(last, b"new", 0, True), Publish(ALL[-2], b"", 0, True))
    site.send(WRITER, Publish(ALL[0], b"new", 0, True), Publish("r/99999", b"first", 0, True))
    site.go_on()
    of_last = [(one.payload, one.retain) for one in site.got[READER] if one.topic == last]
    assert of_last == [(b"new", False)], "what was retained before came behind what replaced it"
    assert [one.payload for one in site.got[READER] if one.topic == ALL[-2]] == [b""]
    assert [one.payload for one in site.got[READER] if one.topic == ALL[0]] == [b"old", b"new"]
    assert site.topics().count("r/99999") == 1
    site.check_replay()


def test_a_slow_reader_gets_no_more_until_it_reads_again() -> None:
    site = Site()
    site.retain()
    site.subscribe("r/#")
    site.step(ClientSlowed(READER, is_slow=True))
    assert site.go_on() == 0
    assert len(site.topics()) == SLICE_VISITS
    site.step(ClientSlowed(READER, is_slow=False))
    site.go_on()
    assert site.topics() == ALL
    site.check_replay()


def test_a_recall_waits_for_acknowledgements_and_for_a_client_that_is_away() -> None:
    site = Site()
    site.send(WRITER, *(Publish(topic, b"old", 1, True, packet_id=n + 1) for n, topic in enumerate(ALL)))
    site.connect(3, "reader", receive_maximum=100)
    site.subscribe("r/#", qos=1, number=3)
    site.go_on()
    assert site.topics(3) == ALL[:100]
    stored = site.machine.broker.attachments["reader"].queue
    assert stored is not None
    assert len(stored) <= SLICE_VISITS
    site.step(ConnectionLost(3))
    assert site.go_on() == 0
    site.connect(4, "reader", receive_maximum=100)
    acknowledged: list[str] = []
    while got := site.got.pop(4, []):
        acknowledged += [one.topic for one in got]
        site.send(4, *(Puback(one.packet_id) for one in got))
        site.go_on()
    assert acknowledged == ALL
    site.check_replay()


def test_who_unsubscribes_gets_no_more() -> None:
    site = Site()
    site.retain()
    site.subscribe("r/#")
    site.send(READER, Unsubscribe(2, ("r/#",)))
    assert site.go_on() == 0
    assert len(site.topics()) == SLICE_VISITS
    site.check_replay()


def test_the_same_filter_many_times_is_recalled_once_for_each_packet_at_most_twice() -> None:
    site = Site()
    site.retain()
    site.subscribe(*["#"] * 200)
    site.go_on()
    assert site.topics() == ALL
    for _ in range(10):
        site.subscribe("#")
    site.go_on()
    assert site.topics().count(ALL[-1]) == 3
    site.check_replay()


def test_many_clients_at_once_take_turns() -> None:
    site = Site()
    site.retain()
    for number in range(10, 30):
        site.connect(number, f"reader-{number}")
        site.subscribe("#", number=number)
    before = [len(site.topics(number)) for number in range(10, 30)]
    site.step(Tick())
    after = [len(site.topics(number)) for number in range(10, 30)]
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 4
    site.go_on()
    assert all(site.topics(number) == ALL for number in range(10, 30))
    site.check_replay()
