"""A state comes back as it was: equal, with the same identities, and nothing else than a state does."""

from __future__ import annotations

import math
import subprocess
import sys
import tracemalloc
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.test_rooms import PURE

from roamcast.broker.core import BrokerCore
from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mobility import find_protocol
from roamcast.protocol.messages import AttachRequest
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import Buffer, DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.protocol.snapshot import CannotFreeze, freeze, freezing, hash_of, path_to, state_hash, thaw
from roamcast.protocol.snapshot_form import (
    FORMAT_2,
    MAGIC,
    STATEFUL,
    Catalogue,
    Kind,
    Shape,
    SnapshotForm,
)
from roamcast.state import State


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Plain:
    __state__ = State("plain", saved=("one", "two"))

    def __init__(self, one: Any = None, two: Any = None) -> None:
        self.one = one
        self.two = two

    def act(self) -> str:
        return "acted"


class Slotted:
    __slots__ = ("_cache", "count", "given")

    __state__ = State("slotted", unhashed=("count",), derived=("_cache",))

    def __init__(self, given: Any, count: int = 0) -> None:
        self.given = given
        self.count = count
        self._restore()

    def _restore(self) -> None:
        self._cache = [self.given]


class Derived(Slotted):
    __state__ = State("derived", saved=("own",))

    def __init__(self, given: Any, own: Any) -> None:
        super().__init__(given)
        self.own = own


class Undeclared(Slotted):
    pass


class Forgetful:
    __slots__ = ("forgotten", "told")

    __state__ = State("forgetful", saved=("told",))


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclass
class Loose:
    items: list[int]


class Changing(msgspec.Struct):
    name: str
    values: list[Any] = []


class Keyworded(msgspec.Struct, frozen=True, kw_only=True):
    a: int
    b: Any = None


class Active(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        self.a += 1


class Indexed:
    __state__ = State("indexed", saved=("words",), derived=("_index",))

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._restore()

    def _restore(self) -> None:
        self._index: Callable[[str], bool] = lambda word: word in self.words

    def has(self, word: str) -> bool:
        return self._index(word)


class Careful:
    """Making one, or setting an attribute, would be noticed."""

    __state__ = State("careful", saved=("name",))
    name: str

    def __init__(self) -> None:
        raise RuntimeError("was made")

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("was changed")


class OwnDict(dict[str, int]):
    __state__ = State("own-dict")


class OwnTuple(tuple[int, ...]):
    pass


HERE = Catalogue((f"{__name__}.", *(f"roamcast.{place}." for place in STATEFUL)))


def copied(value: Any) -> Any:
    return thaw(freeze(value, HERE), HERE, verify=True)


# --- what comes back ---

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(Colour)
    | st.sampled_from([parse("x > 1"), parse("kind = 'a'")])
)
KEYS = st.recursive(
    LEAVES, lambda parts: st.tuples(parts, parts) | st.builds(Pair, parts, parts), max_leaves=3
)
VALUES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts)
        | st.tuples(parts)
        | st.builds(Pair, parts, parts)
        | st.builds(lambda items: deque(items, maxlen=5), st.lists(parts))
        | st.dictionaries(KEYS, parts)
        | st.builds(OrderedDict, st.dictionaries(KEYS, parts))
        | st.sets(KEYS)
        | st.frozensets(KEYS)
        | st.builds(Changing, st.text(), st.lists(parts))
        | st.builds(Loose, parts)
        | st.builds(bytearray, st.binary())
    ),
    max_leaves=40,
)


def types_of(value: Any) -> Any:
    """The types all the way down: 1, 1.0 and True are equal, and so are a list and our own."""
    if isinstance(value, dict):
        return type(value), [(types_of(key), types_of(part)) for key, part in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [types_of(part) for part in value]
    return type(value)


@given(VALUES)
@settings(max_examples=120, deadline=None)
def test_any_state_comes_back_equal(value: Any) -> None:
    found = copied(value)
    assert found == value
    assert types_of(found) == types_of(value)


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, math.inf, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64) - 1, 1 << 5_000, "", b"", (), 5e-324],
)
def test_edges_of_numbers_and_emptiness(value: Any) -> None:
    found = copied([value, [value]])
    assert found == [value, [value]]
    assert type(found[0]) is type(value)
    assert not isinstance(value, float) or math.copysign(1, found[0]) == math.copysign(1, value)


def test_not_a_number_stays_none() -> None:
    assert math.isnan(copied(math.nan))


def test_numbers_of_different_types_stay_apart() -> None:
    found = copied([1, 1.0, True, 0, 0.0, -0.0, False])
    assert list(map(repr, found)) == ["1", "1.0", "True", "0", "0.0", "-0.0", "False"]


def test_containers_keep_their_kind_and_order() -> None:
    counts: defaultdict[str, list[int]] = defaultdict(list, {"b": [1], "a": []})
    found = copied(
        [counts, Counter(z=3, a=1), OrderedDict(z=1, a=2), deque([1, 2], maxlen=2), {"z": 1, "a": 2}]
    )
    assert found[0]["new"] == []
    assert list(found[0]) == ["b", "a", "new"]
    assert (type(found[1]), list(found[1].items())) == (Counter, [("z", 3), ("a", 1)])
    assert (type(found[2]), list(found[2])) == (OrderedDict, ["z", "a"])
    found[2].move_to_end("z")
    assert list(found[2]) == ["a", "z"]
    found[3].append(3)
    assert list(found[3]) == [2, 3]
    assert list(found[4]) == ["z", "a"]


def test_a_heap_stays_one() -> None:
    heap: list[tuple[float, int, Any]] = []
    for number, at in enumerate([5.0, 1.0, 3.0, 2.0]):
        heappush(heap, (at, number, ("token", number)))
    found = copied(heap)
    assert [heappop(found) for _ in range(4)] == sorted(heap)


def test_what_was_one_object_is_one_object() -> None:
    queue = DeliveryQueue("b0", buffer=Buffer(1000))
    burst = Burst("p", 0, 1, b"\x80", 0.0, (b"body" * 100,), 1)
    queue.append(burst)
    shared = ["shared"]
    state = Plain(queue, [{"queue": queue}, (shared, burst), Pair(shared), [burst]])
    found = copied(state)
    assert found.one is found.two[0]["queue"]
    assert found.two[1][0] is found.two[2].left
    assert found.two[1][1] is found.two[3][0] is found.one.waiting[0]
    assert found.one._buffer._arrivals[0][0] is found.one
    assert found.one is not queue


def test_equal_objects_stay_two() -> None:
    found = copied([[], [], Plain(), Plain(), [1], [1]])
    assert found[0] is not found[1]
    assert found[2] is not found[3]
    found[4].append(2)
    assert found[5] == [1]


def test_cycles_of_every_kind() -> None:
    ring: list[Any] = []
    owner = Plain(ring)
    ring += [ring, owner, (owner, ring), {"owner": owner, "ring": ring}, Pair(ring, owner)]
    struct = Changing("loop")
    struct.values.append(struct)
    found = copied([ring, struct])
    again, loop = found
    assert again[0] is again
    assert again[1].one is again
    assert again[2] == (again[1], again)
    assert again[3]["owner"] is again[1]
    assert again[4].left is again
    assert loop.values[0] is loop


def test_a_long_chain_needs_no_deep_stack() -> None:
    chain: Any = None
    for _ in range(20_000):
        chain = Plain([chain])
    found, length = copied(chain), 0
    while found is not None:
        found, length = found.one[0], length + 1
    assert length == 20_000


def test_dicts_and_lists_in_frozen_structs_within_containers() -> None:
    requests = {name: AttachRequest(name, "b", 1, 2, {name: 3}) for name in ("a", "b")}
    assert copied([requests, {"grown": Grown(1, [2, 3])}]) == [requests, {"grown": Grown(1, [2, 3])}]


def test_filters_are_the_interned_ones() -> None:
    one = parse("x > 1 AND kind = 'a'")
    found = copied({one: [one]})
    assert list(found) == [one]
    assert found[one][0] is one


def test_a_filter_that_nobody_holds_is_made_again() -> None:
    data = freeze([parse("never_seen > 123")])
    (found,) = thaw(data)
    assert found.matches({"never_seen": 124})


def test_slots_and_the_fields_of_bases() -> None:
    found = copied([Slotted(5, count=2), Derived(6, "own")])
    assert (found[0].given, found[0].count, found[0]._cache) == (5, 2, [5])
    assert (found[1].given, found[1].own, found[1]._cache) == (6, "own", [6])


def test_instances_as_keys_are_complete_when_they_are_hashed() -> None:
    found = copied({Point(1, 2): {Point(3, 4)}, (Point(5, 6),): 1})
    assert found[Point(1, 2)] == {Point(3, 4)}
    assert found[(Point(5, 6),)] == 1


def test_structs_with_keywords_and_without() -> None:
    request = AttachRequest("c", "b0", 1, 2, {"b0": 3})
    found = copied([Keyworded(a=1), request, Session("c", subscriptions={"TRUE": 1.0}), request])
    assert found == [Keyworded(a=1), request, Session("c", subscriptions={"TRUE": 1.0}), request]
    assert found[1] is found[3]


def test_what_is_not_saved_is_restored() -> None:
    found = copied(Indexed(["a", "b"]))
    assert found.has("a")
    assert not found.has("c")
    found.words.append("c")
    assert found.has("c")


def test_no_code_runs_when_instances_are_made() -> None:
    careful = object.__new__(Careful)
    object.__setattr__(careful, "name", "kept")
    assert copied(careful).name == "kept"


def test_the_bytes_do_not_depend_on_hashes() -> None:
    program = (
        "from roamcast.protocol.snapshot import freeze\n"
        "print(freeze([{'b', 'a', 'c'}, frozenset({3, 1, 2}), {('x', 1), ('a', 2)}]).hex())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(runs) == 1


# --- the hash ---


def test_the_hash_is_that_of_the_frozen_bytes() -> None:
    state = [Slotted([1, 2.5, None]), Derived("given", {"a"}), parse("x > 1")]
    assert state_hash(state, HERE) == hash_of(freeze(state, HERE)) == state_hash(copied(state), HERE)


def test_what_is_not_hashed_is_saved_and_makes_no_difference() -> None:
    one, other = [Slotted("same", count=1)], [Slotted("same", count=2)]
    assert state_hash(one, HERE) == state_hash(other, HERE)
    assert copied(other)[0].count == 2
    assert state_hash(one, HERE) != state_hash([Slotted("another", count=1)], HERE)


def test_values_that_are_equal_and_not_one_object_make_no_difference() -> None:
    def made(shared: bool) -> list[Any]:
        first, second = Pair(1.5, ("a" * 9, 2**70)), Pair(float("1.5"), ("".join(["a"] * 9), 2**69 * 2))
        request, again = AttachRequest("c", "b", 1, 2, {"b": 3}), AttachRequest("c", "b", 1, 2, {"b": 3})
        return [first, first if shared else second, request, request if shared else again]

    assert state_hash(made(True), HERE) == state_hash(made(False), HERE)


def test_order_types_and_signs_make_a_difference() -> None:
    states: list[Any] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, [0.0], [-0.0], [0], [False], [[], []], [()]]
    shared: list[Any] = []
    states.append([shared, shared])
    assert len({state_hash(one) for one in states}) == len(states)


def test_a_thawed_state_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = freeze([Indexed(["a"])], HERE)
    monkeypatch.setattr(Indexed, "_restore", lambda self: self.words.append("b"))
    with pytest.raises(InputError, match=r"\(its state hash is [0-9a-f]{32}, not [0-9a-f]{32}"):
        thaw(data, HERE, verify=True)
    assert thaw(data, HERE)[0].words == ["a", "b"]


# --- other versions ---


def frozen_by_another(cls: type, state: State | None, value: Any) -> bytes:
    """The bytes of a value, as code would write them where its class declares another state."""
    catalogue, here = Catalogue((f"{__name__}.",)), cls.__dict__["__state__"]
    setattr(cls, "__state__", state)  # noqa: B010
    try:
        return freeze(value, catalogue)
    finally:
        setattr(cls, "__state__", here)  # noqa: B010


class Lifted:
    @staticmethod
    def lift_1(fields: dict[str, Any]) -> None:
        fields["words"] = [fields.pop("word")]

    @staticmethod
    def lift_2(fields: dict[str, Any]) -> None:
        fields["count"] = len(fields["words"])

    __state__ = State("lifted", 3, saved=("words",), unhashed=("count",), lifts={1: lift_1, 2: lift_2})
    words: list[str]
    count: int


def test_older_versions_are_lifted_step_by_step() -> None:
    old = Lifted()
    old.__dict__["word"] = "a"
    data = frozen_by_another(Lifted, State("lifted", saved=("word",)), [old])
    (found,) = thaw(data, HERE, verify=True)
    assert vars(found) == {"words": ["a"], "count": 1}


@pytest.mark.parametrize(
    ("state", "attributes", "said"),
    [
        (State("lifted", 4, saved=("words",)), {"words": []}, "lifted is of version 4, this code knows 3"),
        (State("lifted", 3, saved=("words",)), {"words": []}, "lifted needs the field count, which the snap"),
        (
            State("lifted", 3, saved=("words", "count", "more")),
            {"words": [], "count": 1, "more": 2},
            "lifted has no field more",
        ),
        (State("unheard-of", saved=("words",)), {"words": []}, "nothing is known of 'unheard-of': a newer"),
    ],
)
def test_what_no_lift_reaches_is_refused(state: State, attributes: dict[str, Any], said: str) -> None:
    value = Lifted()
    value.__dict__.update(attributes)
    data = frozen_by_another(Lifted, state, value)
    with pytest.raises(InputError, match=said):
        thaw(data, HERE)


class Grown(msgspec.Struct, frozen=True):
    a: int
    b: list[int] = []


class GrownTuple(NamedTuple):
    a: int
    b: str = "default"


@dataclass
class GrownData:
    a: int
    b: str = "default"


def test_missing_fields_of_values_take_their_defaults_and_unknown_ones_are_refused() -> None:
    for cls, kind in ((Grown, Kind.FROZEN_STRUCT), (GrownTuple, Kind.NAMED_TUPLE)):
        assert thaw(state_with(Shape(cls.__name__, {}, ("a",)), kind, [0, 1]), HERE) == cls(None)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"{cls.__name__} has no field c"):
            thaw(state_with(Shape(cls.__name__, {}, ("a", "c")), kind, [0, 1, 1]), HERE)
        with pytest.raises(InputError, match=f"{cls.__name__} needs the field a"):
            thaw(state_with(Shape(cls.__name__, {}, ("b",)), kind, [0, 1]), HERE)
    shape = Shape("GrownData", {}, ("a",))
    assert thaw(state_with(shape, Kind.OBJECT, [0], instances=[4, 2]), HERE) == GrownData(True)


# --- what is refused ---


def grown(name: str) -> Plain:
    """An object with an attribute that its class does not declare."""
    plain = Plain()
    plain.__dict__[name] = 1
    return plain


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Plain(Plain(lambda: None)), r"plain.one.one: a function cannot be written"),
        (Plain([1, {"k": (2, object())}]), r"plain.one\[1\]\['k'\]\[1\]: a object cannot be written"),
        (Pair(1, memoryview(b"")), r"pair.right: a memoryview cannot be written"),
        (Changing("x", [iter(())]), r"changing.values\[0\]: a tuple_iterator cannot be written"),
        (Slotted({1: InputError("x")}), r"slotted.given\[1\]: a InputError cannot be written"),
        ([Plain().act], r"list\[0\]: a method cannot be written"),
        ([Plain], r"list\[0\]: a type cannot be written"),
        ([Active(1)], r"list\[0\]: a Active cannot be written \(a Active runs code when it is created"),
        ([OwnDict()], r"list\[0\]: a OwnDict cannot be written \(a OwnDict is derived from one of Python's"),
        ([OwnTuple()], r"list\[0\]: a OwnTuple cannot be written"),
        ([frozenset({Point(1, 2)})], r"list\[0\]: a frozenset of instances that are hashed by what"),
        ([{"\ud800": 1}], r"list\[0\].keys\(\)\['\\ud800'\]: text that is not valid Unicode"),
        ([defaultdict(Plain)], r"list\[0\]: a defaultdict that makes neither of int, "),
        ([grown("new")], r"list\[0\]: Plain.new is not declared in Plain.__state__"),
        ([object.__new__(Plain)], r"list\[0\]: Plain.one is declared and not set"),
        ([object.__new__(Forgetful)], r"list\[0\]: .*Forgetful.forgotten is not declared"),
        ([Undeclared(1)], r"list\[0\]: .*Undeclared declares no state"),
        ([type("Plain", (Plain,), {"__module__": __name__})()], r"Plain declares no state"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_place(state: Any, said: str) -> None:
    with pytest.raises(CannotFreeze, match=said):
        freeze(state, HERE)


def test_two_classes_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = type("Twin", (), {"__module__": __name__, "__state__": State("plain")})
    monkeypatch.setitem(globals(), "Twin", twin)
    with pytest.raises(CannotFreeze, match=r"the name plain is used by .*Plain and .*Twin: rename one"):
        freeze(Plain(), Catalogue((f"{__name__}.",)))


def test_tuples_nested_without_end_are_refused() -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(CannotFreeze, match="nested too deeply"):
        freeze(deep)


def test_the_place_of_a_value_in_a_broker() -> None:
    broker = BrokerCore("b0", find_protocol("multi_hop_handoff"))
    broker.router.strategy = print  # type: ignore[assignment]
    with pytest.raises(CannotFreeze, match=r"^brokercore\.router\.strategy: a builtin_function_or_method"):
        freeze(broker)
    assert path_to(broker, object()) == "brokercore…"


@pytest.fixture(scope="module")
def whole() -> bytes:
    return freeze(BrokerCore("b0", find_protocol("multi_hop_handoff")))


def test_a_snapshot_cut_off_anywhere_is_refused(whole: bytes) -> None:
    for size in range(len(whole)):
        with pytest.raises(InputError, match=f"^snapshot of {size} bytes: damaged or cut off"):
            thaw(whole[:size])


def test_every_flipped_bit_is_refused(whole: bytes) -> None:
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InputError, match="damaged"):
            thaw(bytes(flipped))


def sealed(encoded: bytes) -> bytes:
    """Bytes of the former format with the right checksum, whatever they are."""
    return zlib.crc32(encoded).to_bytes(4, "big") + encoded


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_nonsense_with_the_right_checksum_is_refused_or_a_state(whole: bytes, data: st.DataObject) -> None:
    encoded = bytearray(whole[len(MAGIC) : -4])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    body = MAGIC + bytes(encoded)
    refusal = refusal_of(body + zlib.crc32(body).to_bytes(4, "big"))
    assert "\n" not in refusal


def refusal_of(data: bytes) -> str:
    """The line with which bytes are refused, or nothing; any other exception is a failure."""
    try:
        thaw(data)
    except InputError as error:
        return str(error)
    return ""


def state_with(shape: Shape, kind: int, building: list[int], instances: list[int] | None = None) -> bytes:
    """A snapshot of one value of a class, as `freeze` might not write it."""
    hashed = SnapshotForm(bytes([kind]), [], [], [], [], [shape], building, instances or [], [], [], [], [])
    rest = SnapshotForm(b"", [], [], [], [], [], [], [], [], [], [], [])
    parts = (msgspec.msgpack.encode(hashed), msgspec.msgpack.encode(rest))
    return sealed(msgspec.msgpack.encode((FORMAT_2, 4, *parts)))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("Popen", Kind.OBJECT, "nothing is known of 'Popen'"),
        ("eval", Kind.OBJECT, "nothing is known of 'eval'"),
        ("InputError", Kind.OBJECT, "nothing is known of 'InputError'"),
        ("Session", Kind.ENUM, "Session is no enum"),
        ("Session", Kind.NAMED_TUPLE, "Session is no named tuple"),
        ("Session", Kind.FROZEN_STRUCT, "Session is no frozen struct"),
        ("buffer", Kind.STRUCT, "buffer is no struct"),
        ("buffer", 22, "IndexError"),
    ],
)
def test_nothing_but_our_own_classes_can_be_had(name: str, kind: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        thaw(state_with(Shape(name, {}, ()), kind, [0]))


def test_states_are_in_rooms_that_are_kept_pure() -> None:
    assert {place.partition(".")[0] for place in STATEFUL} <= PURE


def test_another_format_is_refused() -> None:
    data = msgspec.msgpack.encode((FORMAT_2 + 1, 1, b"", b""))
    with pytest.raises(InputError, match=f"format {FORMAT_2 + 1}; this code reads {FORMAT_2}"):
        thaw(sealed(data))
    with pytest.raises(InputError, match="its format is unknown to this code"):
        thaw(sealed(msgspec.msgpack.encode([1])))


def test_no_module_is_imported_because_of_a_snapshot() -> None:
    program = (
        "import sys\n"
        "from roamcast.protocol.snapshot import freeze, thaw\n"
        "from roamcast.protocol.snapshot_form import STATE_CLASSES\n"
        "before = set(sys.modules)\n"
        "for name in ('broker-core', 'roamcast.broker.core', 'roamcast.cli.sim'):\n"
        "    try: STATE_CLASSES.named(name)\n"
        "    except Exception as error: print(error)\n"
        "print(set(sys.modules) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *refusals, imported = done.stdout.splitlines()
    assert [one.partition(":")[0] for one in refusals] == [
        "nothing is known of 'broker-core'",
        "nothing is known of 'roamcast.broker.core'",
        "nothing is known of 'roamcast.cli.sim'",
    ]
    assert imported == "set()"


def test_what_is_large_is_written_without_a_copy_of_it() -> None:
    """Queues of 32 MB, of which half is in two queues, are written in pieces of one message each."""
    queues = [DeliveryQueue("stream"), DeliveryQueue("stream")]
    for number in range(32):
        burst = Burst("p", 1, number + 1, b"", 1.0, (number.to_bytes(2, "big") * (1 << 19),))
        for queue in queues[: 1 + number % 2]:
            queue.append(burst)
    tracemalloc.start()
    written = sum(len(piece) for piece in freezing(queues))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 32 << 20 < written < 33 << 20
    assert peak < 5 << 20


def test_bursts_stay_one_object_where_several_queues_have_them() -> None:
    small = Burst("p", 1, 1, b"a", 1.0, (b"body",))
    large = Burst("p", 1, 2, b"a", 1.0, (bytes(5000),))
    at_zero = Burst("p", 1, 3, b"a", 0, (b"body",))
    one, other, alone = thaw(freeze([[small, large], [small, large], [at_zero]]))
    assert one == [small, large]
    assert one[0] is other[0]
    assert one[1] is other[1]
    assert type(alone[0].published_at) is int
