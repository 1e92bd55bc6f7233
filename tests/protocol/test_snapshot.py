"""A state comes back as it was: equal, with the same identities, and nothing else than a state does."""

from __future__ import annotations

import math
import subprocess
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from types import MethodType
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
from roamcast.protocol.snapshot import PURE_ROOMS, CannotFreeze, freeze, known_class, path_to, thaw
from roamcast.protocol.snapshot_form import FORMAT, Shape, SnapshotForm


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def act(self) -> str:
        return "acted"

    def _act(self) -> None:
        pass


class Slotted:
    __slots__ = ("__hidden", "given", "missing")

    def __init__(self, given: Any) -> None:
        self.given = given
        self.__hidden = "hidden"

    @property
    def hidden(self) -> str:
        return self.__hidden


class Derived(Slotted):
    def __init__(self, given: Any, own: Any) -> None:
        super().__init__(given)
        self.own = own


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
    __unsaved__ = ("_index",)

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._restore()

    def _restore(self) -> None:
        self._index: Callable[[str], bool] = lambda word: word in self.words

    def has(self, word: str) -> bool:
        return self._index(word)


class Careful:
    """Making one, or setting an attribute, would be noticed."""

    def __init__(self) -> None:
        raise RuntimeError("was made")

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("was changed")


class OwnDict(dict[str, int]):
    pass


class OwnTuple(tuple[int, ...]):
    pass


def known(module: str, name: str) -> type:
    if module == __name__ and isinstance(globals().get(name), type):
        found: type = globals()[name]
        return found
    return known_class(module, name)


def copied(value: Any) -> Any:
    return thaw(freeze(value, known), known)


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
    state = Plain(one=queue, two={"queue": queue}, three=(shared, burst), four=Pair(shared), five=[burst])
    found = copied(state)
    assert found.one is found.two["queue"]
    assert found.three[0] is found.four.left
    assert found.three[1] is found.five[0] is found.one.waiting[0]
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
    owner = Plain(ring=ring)
    ring += [ring, owner, (owner, ring), {"owner": owner, "ring": ring}, Pair(ring, owner), owner.act]
    struct = Changing("loop")
    struct.values.append(struct)
    found = copied([ring, struct])
    again, loop = found
    assert again[0] is again
    assert again[1].ring is again
    assert again[2] == (again[1], again)
    assert again[3]["owner"] is again[1]
    assert again[4].left is again
    assert again[5].__self__ is again[1]
    assert loop.values[0] is loop


def test_a_long_chain_needs_no_deep_stack() -> None:
    chain: Any = None
    for _ in range(20_000):
        chain = Plain(next=[chain])
    found, length = copied(chain), 0
    while found is not None:
        found, length = found.next[0], length + 1
    assert length == 20_000


def test_filters_are_the_interned_ones() -> None:
    one = parse("x > 1 AND kind = 'a'")
    found = copied({one: [one]})
    assert list(found) == [one]
    assert found[one][0] is one


def test_a_filter_that_nobody_holds_is_made_again() -> None:
    data = freeze([parse("never_seen > 123")])
    (found,) = thaw(data)
    assert found.matches({"never_seen": 124})


def test_bound_methods_and_classes() -> None:
    plain = Plain(a=1)
    plain.__dict__["call"] = plain.act
    found = copied([plain, plain._act, Plain, Burst, defaultdict(int), Colour.GREEN])
    assert found[0].call() == "acted"
    assert found[0].call.__self__ is found[0]
    assert found[1] == found[0]._act
    assert found[2:4] == [Plain, Burst]
    assert found[5] is Colour.GREEN


def test_slots_also_private_and_unset_ones() -> None:
    found = copied([Slotted(5), Derived(6, "own")])
    assert (found[0].given, found[0].hidden) == (5, "hidden")
    assert not hasattr(found[0], "missing")
    assert (found[1].given, found[1].hidden, found[1].own) == (6, "hidden", "own")


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


# --- what is refused ---


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Plain(router=Plain(_send=lambda: None)), r"plain.router._send: a function cannot be written"),
        (Plain(a=[1, {"k": (2, object())}]), r"plain.a\[1\]\['k'\]\[1\]: a object cannot be written"),
        (Pair(1, memoryview(b"")), r"pair.right: a memoryview cannot be written"),
        (Changing("x", [iter(())]), r"changing.values\[0\]: a tuple_iterator cannot be written"),
        (Slotted({1: InputError("x")}), r"slotted.given\[1\]: a InputError cannot be written"),
        ([Active(1)], r"list\[0\]: a Active, which does something when it is made"),
        ([object.__new__(Slotted), print], r"list\[1\]: a builtin_function_or_method cannot be written"),
        ([subprocess.Popen], r"list\[0\]: a class cannot be written \(subprocess.Popen is not in"),
        ([OwnDict()], r"list\[0\]: a OwnDict, which is derived from one of Python's own classes"),
        ([OwnTuple()], r"list\[0\]: a OwnTuple, a tuple without names"),
        ([frozenset({Point(1, 2)})], r"list\[0\]: a frozenset of instances that are hashed by what"),
        ([{"\ud800": 1}], r"list\[0\].keys\(\)\['\\ud800'\]: text that is not valid Unicode"),
        ([b"".join], r"list\[0\]: a builtin_function_or_method cannot be written"),
        ([MethodType(len, Plain())], r"list\[0\]: a method len that is not one of Plain's own"),
        ([type("Plain", (), {"__module__": __name__, "__qualname__": "Plain"})()], r"of another class of"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_place(state: Any, said: str) -> None:
    with pytest.raises(CannotFreeze, match=said):
        freeze(state, known)


def test_tuples_nested_without_end_are_refused() -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(CannotFreeze, match="nested too deeply"):
        freeze(deep)


def test_the_place_of_a_value_in_a_broker() -> None:
    broker = BrokerCore("b0", find_protocol("multi_hop_handoff"))
    broker.router._send = lambda peer, message: None
    with pytest.raises(CannotFreeze, match=r"^brokercore\.router\._send: a function cannot be written"):
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
    """Bytes with the right checksum, whatever they are."""
    return zlib.crc32(encoded).to_bytes(4, "big") + encoded


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_nonsense_with_the_right_checksum_is_refused_or_a_state(whole: bytes, data: st.DataObject) -> None:
    encoded = bytearray(whole[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    refusal = refusal_of(sealed(bytes(encoded)))
    assert "\n" not in refusal


def refusal_of(data: bytes) -> str:
    """The line with which bytes are refused, or nothing; any other exception is a failure."""
    try:
        thaw(data)
    except InputError as error:
        return str(error)
    return ""


def state_with(shape: Shape, kind: int, building: list[int]) -> bytes:
    """A snapshot of one value of a class, as `freeze` would never write it."""
    state = SnapshotForm(FORMAT, 4, bytes([kind]), [], [], [], [], [shape], building, [], [], [], [])
    return sealed(msgspec.msgpack.encode(state))


CLASS, ENUM, NAMED_TUPLE, FROZEN_STRUCT, OBJECT = 6, 7, 10, 12, 14


@pytest.mark.parametrize(
    ("shape", "kind", "said"),
    [
        (Shape("subprocess", "Popen", []), CLASS, "subprocess.Popen is not in one of Roamcast's pure rooms"),
        (Shape("builtins", "eval", []), CLASS, "builtins.eval is not in one of"),
        (Shape("roamcast.cli", "Sequence", []), CLASS, "roamcast.cli.Sequence is not in one of"),
        (
            Shape("roamcast.protocol.snapshot", "deque", []),
            CLASS,
            "there is no class roamcast.protocol.snapshot.deque",
        ),
        (Shape("roamcast.protocol.snapshot", "freeze", []), CLASS, "there is no class"),
        (Shape("roamcast.protocol.nothing", "X", []), CLASS, "ModuleNotFoundError"),
        (Shape("roamcast.protocol/../os", "X", []), CLASS, "is not in one of"),
        (Shape("roamcast.protocol.session", "Session.serve", []), CLASS, "there is no class"),
        (Shape("roamcast.protocol.session", "Session", []), ENUM, "Session is no enumeration"),
        (Shape("roamcast.protocol.session", "Session", []), NAMED_TUPLE, "Session has other fields than"),
        (Shape("roamcast.protocol.session", "Session", []), FROZEN_STRUCT, "required argument 'client'"),
        (Shape("roamcast.protocol.queues", "Buffer", []), FROZEN_STRUCT, "Buffer is not a plain struct"),
        (Shape("roamcast.protocol.session", "Session", []), OBJECT, "TypeError"),
        (Shape("roamcast.protocol.queues", "Buffer", []), 23, "IndexError"),
    ],
)
def test_nothing_but_our_own_classes_can_be_had(shape: Shape, kind: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        thaw(state_with(shape, kind, [0]))


def test_the_rooms_are_those_that_are_kept_pure() -> None:
    assert set(PURE_ROOMS) == PURE


def test_another_format_is_refused() -> None:
    state = SnapshotForm(FORMAT + 1, 1, b"", [], [], [], [], [], [], [], [], [], [])
    with pytest.raises(InputError, match=f"format {FORMAT + 1}; this code reads {FORMAT}"):
        thaw(sealed(msgspec.msgpack.encode(state)))


def test_a_module_outside_is_not_even_imported() -> None:
    program = (
        "import sys\n"
        "from roamcast.protocol.snapshot import known_class\n"
        "from roamcast.errors import InputError\n"
        "for name in ('colorsys', 'roamcast.cli.sim', 'roamcast.simulator.run'):\n"
        "    try: known_class(name, 'X')\n"
        "    except InputError: print(name, name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "colorsys False", "roamcast.cli.sim False", "roamcast.simulator.run False",
    ]  # fmt: skip
