"""Which room may import which, and what a pure room may not touch.

The rules are the two tables below; everything under them reads source text and never imports it,
so a room that breaks them is named even when it cannot be loaded. A new folder in src/roamcast must
be added to SEES before its first import passes.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "roamcast"

PRODUCT = {"filters", "protocol", "routing", "mobility", "mqtt", "broker", "replication"}
PROCESSES = PRODUCT | {"records", "config", "storage", "net"}
TOOLS = PROCESSES | {"client", "simulator", "daemon", "proxy", "models", "slow_link"}

# Room to what it may import of roamcast: a room, or one module of a room. Every room may also import
# itself, roamcast.errors and roamcast.state. Rooms of one line do not see each other.
SEES: dict[str, set[str]] = {
    "errors": set(),
    "state": set(),
    "plugins": set(),
    "filters": set(),
    "models": set(),
    "protocol": {"filters"},
    "routing": {"filters", "protocol"},
    "mobility": {"filters", "protocol", "routing"},
    "mqtt": {"filters", "protocol"},
    "broker": PRODUCT - {"broker", "replication"},
    "replication": set(),
    "records": {"protocol.records", "protocol.notification"},
    "client": {"filters", "protocol.records", "mqtt", "records"},
    "view": {"filters", "protocol.records", "protocol.notification", "records", "lab.figures"},
    "pipeline": {"filters", "protocol.records", "models", "client", "lab.figures", "lab.rows"},
    "storage": set(),
    "config": PRODUCT,
    "net": PRODUCT | {"config"},
    "daemon": PROCESSES,
    "proxy": PROCESSES | {"client"},
    "simulator": PRODUCT | {"records"},
    "slow_link": set(),
    "bench": TOOLS,
    "lab": TOOLS | {"bench", "plugins"},
    "cli": TOOLS | {"bench", "lab", "pipeline", "plugins", "view"},
    "__main__": {"cli"},
}

PURE = PRODUCT | {"models"}

# Modules that are pure in a room that is not: the protocol of the proxies beside their drivers.
PURE_PROXY = ("ahead", "buffers", "errands", "messages", "residents", "service", "steps")
PURE_MODULES = {f"proxy/{name}.py" for name in PURE_PROXY}

# Clocks, entropy, files, sockets, threads and processes: what would let two runs of the same inputs differ.
BANNED_IN_PURE = {
    *("asyncio", "threading", "multiprocessing", "concurrent", "subprocess", "signal"),
    *("time", "datetime", "random", "secrets", "uuid"),
    *("os", "pathlib", "tempfile", "shutil", "socket", "select", "selectors", "ssl"),
}
BANNED_CALLS_IN_PURE = {"open", "io.open", "input", "print"}
IMPORTING_CALLS = {"__import__", "import_module", "importlib.import_module"}


@dataclass(frozen=True)
class Violation:
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def room_of(path: Path) -> str:
    """The room of a file given relative to src/roamcast; the package's own __init__ is in none."""
    if len(path.parts) > 1:
        return path.parts[0]
    return "" if path.stem == "__init__" else path.stem


def imported_names(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute dotted name that a file imports, `from a import b` as a.b, with its line.

    Imports inside functions and under TYPE_CHECKING count: a dependency that is only loaded late,
    or only named in a type, is still one that a reader has to follow.
    """
    package = ["roamcast", *path.parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and called_name(node) in IMPORTING_CALLS:
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in names)


def called_name(call: ast.Call) -> str:
    """`f` for f(…), `a.f` for a.f(…), and nothing for what is called on anything longer."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


def may_import(room: str, name: str) -> bool:
    """Whether a room may import a dotted name below roamcast, such as core.records.Record."""
    target = name.partition(".")[0]
    if target.startswith("__"):  # roamcast.__version__
        return True
    if room == "":
        return target == "client"  # roamcast.connect
    if target in {room, "errors", "state"}:
        return True
    return any(f"{name}.".startswith(f"{allowed}.") for allowed in SEES[room])


def is_bare_set(node: ast.expr) -> bool:
    """Whether an expression visibly gives a set, whose order differs from process to process."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return called_name(node) in {"set", "frozenset"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return is_bare_set(node.left) or is_bare_set(node.right)
    return False


def iterated(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression whose order somebody sees. A set built from a set has no order to see."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            yield from (generator.iter for generator in node.generators)
        elif isinstance(node, ast.Call) and called_name(node) in {"list", "tuple", "iter", "enumerate"}:
            yield from node.args[:1]
        elif isinstance(node, ast.Starred):
            yield node.value


def violations_in(path: Path, text: str) -> Iterator[Violation]:
    """What one file, given relative to src/roamcast, does that its room may not."""
    room = room_of(path)
    if room and room not in SEES:
        yield Violation(path, 1, f"the room {room} is not in the table of tests/test_rooms.py")
        return
    is_pure = room in PURE or path.as_posix() in PURE_MODULES
    tree = ast.parse(text, filename=str(path))
    for line, name in imported_names(tree, path):
        top, _, below = name.partition(".")
        if top == "roamcast" and below and not may_import(room, below):
            yield Violation(path, line, f"{room or 'the package'} may not import {name}")
        if is_pure and top in BANNED_IN_PURE:
            yield Violation(path, line, f"{room} is pure and may not import {top}")
    if not is_pure:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in BANNED_CALLS_IN_PURE:
            yield Violation(path, node.lineno, f"{room} is pure and may not call {called_name(node)}()")
    for expression in iterated(tree):
        if is_bare_set(expression):
            yield Violation(path, expression.lineno, "iterates a bare set; sort it, or keep a dict")


def violations_under(folder: Path) -> list[Violation]:
    return [
        violation
        for path in sorted(folder.rglob("*.py"))
        for violation in violations_in(path.relative_to(folder), path.read_text(encoding="utf-8"))
    ]


def test_every_room_keeps_the_rules() -> None:
    found = violations_under(SOURCE)
    assert not found, "\n" + "\n".join(map(str, found))


def test_the_source_is_where_the_checker_looks() -> None:
    assert (SOURCE / "errors.py").is_file(), "an empty walk would find nothing wrong"


def test_the_table_has_no_cycle() -> None:
    rooms = {room: {allowed.partition(".")[0] for allowed in sees} for room, sees in SEES.items()}
    while rooms:
        free = [room for room, sees in rooms.items() if not sees & set(rooms)]
        assert free, f"these see each other: {sorted(rooms)}"
        for room in free:
            del rooms[room]


def test_a_planted_violation_is_found_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "good.py").write_text("from roamcast.filters import filter\n")
    assert violations_under(tmp_path) == []
    (tmp_path / "protocol" / "bad.py").write_text("import re\nimport time\n")
    assert list(map(str, violations_under(tmp_path))) == [
        "protocol/bad.py:2: protocol is pure and may not import time"
    ]


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        (
            "filters/a.py",
            "from roamcast.protocol.records import Row",
            "filters may not import roamcast.protocol",
        ),
        (
            "filters/a.py",
            "from ..protocol import records",
            "filters may not import roamcast.protocol.records",
        ),
        ("filters/a.py", "from .. import protocol", "filters may not import roamcast.protocol"),
        ("filters/deep/a.py", "from ...protocol import x", "filters may not import roamcast.protocol.x"),
        ("protocol/a.py", "import roamcast.mobility.base", "protocol may not import roamcast.mobility.base"),
        ("protocol/a.py", "from roamcast import broker", "protocol may not import roamcast.broker"),
        (
            "mobility/a.py",
            "from roamcast.broker import core",
            "mobility may not import roamcast.broker.core",
        ),
        (
            "routing/a.py",
            "from roamcast.mobility import base",
            "routing may not import roamcast.mobility.base",
        ),
        ("mqtt/a.py", "from roamcast.broker import core", "mqtt may not import roamcast.broker.core"),
        (
            "broker/a.py",
            "from roamcast.simulator import engine",
            "broker may not import roamcast.simulator.engine",
        ),
        ("simulator/a.py", "import roamcast.daemon", "simulator may not import roamcast.daemon"),
        ("simulator/a.py", "import roamcast.cli", "simulator may not import roamcast.cli"),
        ("bench/a.py", "import roamcast.lab", "bench may not import roamcast.lab"),
        (
            "models/a.py",
            "from roamcast.filters import filter",
            "models may not import roamcast.filters.filter",
        ),
        (
            "pipeline/a.py",
            "from roamcast.protocol import messages",
            "pipeline may not import roamcast.protocol.messages",
        ),
        (
            "pipeline/a.py",
            "from roamcast.protocol import records_old",
            "may not import roamcast.protocol.records_old",
        ),
        ("records/a.py", "import roamcast.protocol", "records may not import roamcast.protocol"),
        (
            "records/a.py",
            "from roamcast.filters import filter",
            "records may not import roamcast.filters.filter",
        ),
        ("errors.py", "from roamcast.filters import filter", "errors may not import roamcast.filters.filter"),
        ("__init__.py", "from roamcast.filters import filter", "the package may not import roamcast.filters"),
        ("attic/a.py", "x = 1", "the room attic is not in the table"),
        ("protocol/a.py", "def f():\n    import roamcast.broker", "protocol may not import roamcast.broker"),
        (
            "protocol/a.py",
            "importlib.import_module('roamcast.broker')",
            "protocol may not import roamcast.broker",
        ),
        ("protocol/a.py", "import os.path", "protocol is pure and may not import os"),
        ("broker/a.py", "from datetime import datetime", "broker is pure and may not import datetime"),
        ("mqtt/a.py", "import asyncio", "mqtt is pure and may not import asyncio"),
        ("client/a.py", "import roamcast.broker.machine", "client may not import roamcast.broker.machine"),
        ("models/a.py", "import random", "models is pure and may not import random"),
        ("proxy/service.py", "import time", "proxy is pure and may not import time"),
        ("proxy/driver.py", "import roamcast.daemon.server", "proxy may not import roamcast.daemon.server"),
        ("protocol/a.py", "text = open('a').read()", "protocol is pure and may not call open()"),
        ("protocol/a.py", "text = io.open('a').read()", "protocol is pure and may not call io.open()"),
        ("protocol/a.py", "print('here')", "protocol is pure and may not call print()"),
        ("protocol/a.py", "for x in {a, b}: pass", "iterates a bare set"),
        ("protocol/a.py", "for x in set(y): pass", "iterates a bare set"),
        ("protocol/a.py", "z = [x for x in frozenset(y)]", "iterates a bare set"),
        ("protocol/a.py", "z = {x: 1 for x in {v for v in y}}", "iterates a bare set"),
        ("protocol/a.py", "for x in set(y) - done: pass", "iterates a bare set"),
        ("protocol/a.py", "z = list(set(y))", "iterates a bare set"),
        ("protocol/a.py", "z = [*set(y)]", "iterates a bare set"),
    ],
)
def test_each_rule_can_be_broken(path: str, text: str, what: str) -> None:
    (violation,) = violations_in(Path(path), text)
    assert what in violation.what


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("filters/a.py", "from .filter import Filter\nfrom roamcast.filters import index\nimport re"),
        ("filters/a.py", "from roamcast.errors import InputError\nfrom roamcast import errors"),
        ("protocol/a.py", "from roamcast import __version__"),
        ("__init__.py", "from roamcast.client import connect"),
        ("broker/a.py", "from roamcast.mobility import base\nfrom roamcast.routing import router"),
        (
            "records/a.py",
            "import os\nfrom roamcast.protocol.records import Row\nfrom roamcast.protocol import records",
        ),
        ("pipeline/a.py", "import roamcast.protocol.records\nfrom roamcast.filters.selector import parse"),
        ("simulator/a.py", "import random\nfrom roamcast.records import writer\nfor x in set(y): print(x)"),
        ("cli/a.py", "import roamcast.bench.match, roamcast.lab, roamcast.pipeline, roamcast.daemon"),
        ("protocol/a.py", "for x in sorted(set(y)): pass\nz = {f(x) for x in set(y)}\nn = len(set(y))"),
        ("protocol/a.py", "def open_session(): pass\nopen_session()\nsession.open()"),
    ],
)
def test_what_is_allowed_passes(path: str, text: str) -> None:
    assert list(violations_in(Path(path), dedent(text))) == []


def test_the_picture_of_the_rooms_shows_this_table() -> None:
    from tests.rooms_figure import PLACES, SUBJECTS, draw

    rooms = SEES.keys() - {"errors", "state", "plugins", "__main__"}
    assert sorted(PLACES) == sorted(SUBJECTS) == sorted(rooms)
    picture = SOURCE.parent.parent / "docs" / "figures" / "rooms.svg"
    assert picture.read_text() == draw(), "draw it again: see tests/rooms_figure.py"


def test_the_simulator_has_no_links_journal_or_sessions_of_its_own() -> None:
    """It drives the machine that ships: what it needs of these it imports from the broker's room."""
    network = (SOURCE / "simulator" / "network.py").read_text()
    imported = {name for _, name in imported_names(ast.parse(network), Path("simulator/network.py"))}
    for needed in (
        "roamcast.broker.machine.BrokerMachine",
        "roamcast.broker.inputs.encode_entry",
        "roamcast.broker.inputs.decode_entry",
        "roamcast.protocol.snapshot.freeze",
        "roamcast.protocol.snapshot.thaw",
    ):
        assert needed in imported
    for path in sorted((SOURCE / "simulator").glob("*.py")):
        names = {name for _, name in imported_names(ast.parse(path.read_text()), path.relative_to(SOURCE))}
        makes_core = any(
            isinstance(node, ast.Call) and called_name(node) == "BrokerCore"
            for node in ast.walk(ast.parse(path.read_text()))
        )
        assert not makes_core, f"{path.name} makes a core without its machine"
        replaced = {"roamcast.broker.links.end.LinkEnd", "roamcast.broker.links.frames"} & names
        assert not replaced, f"{path.name} drives links past the machine: {sorted(replaced)}"
