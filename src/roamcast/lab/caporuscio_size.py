"""How large the mobility service is, and who in it knows which broker: read from its source."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

import roamcast.proxy
from roamcast.proxy.adapter import KINDS

CORE = ("service", "ahead", "buffers", "messages", "steps", "errands", "store")
"""The protocol and its state."""
AROUND = ("adapter", "base", "driver", "client", "wire", "discovery", "config", "monitor")
"""What carries it: sockets, the client's library, configuration."""
CODECS = {"activemq": ("stomp",)}
"""What belongs to an adapter beside its own file."""


@dataclass(frozen=True)
class Sizes:
    core: int
    around: int
    adapters: dict[str, int]
    """By kind of broker."""
    leaks: list[tuple[str, str]]
    """A module that is no adapter, and what it imports that only an adapter should know."""
    looked_at: int
    """How many modules that are no adapters were looked at."""


def sizes() -> Sizes:
    folder = Path(roamcast.proxy.__path__[0])
    modules = {kind: where.partition(":")[0].rpartition(".")[2] for kind, where in KINDS.items()}
    present = {kind: name for kind, name in modules.items() if (folder / f"{name}.py").exists()}
    foreign = {*present.values(), *(name for names in CODECS.values() for name in names), "nats", "aio_pika"}
    shared = [name for name in (*CORE, *AROUND) if (folder / f"{name}.py").exists()]
    leaks = [(name, one) for name in shared for one in imported(folder / f"{name}.py") if one in foreign]
    return Sizes(
        sum(lines_of(folder / f"{name}.py") for name in CORE),
        sum(lines_of(folder / f"{name}.py") for name in shared if name not in CORE),
        {
            kind: sum(lines_of(folder / f"{part}.py") for part in (name, *CODECS.get(kind, ())))
            for kind, name in present.items()
        },
        leaks,
        len(shared),
    )


def lines_of(path: Path) -> int:
    """Lines with code on them: no comments, no docstrings, no empty ones."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    documented: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    quiet = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    coded: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in quiet:
            coded |= set(range(token.start[0], token.end[0] + 1))
    return len(coded - documented)


def imported(path: Path) -> list[str]:
    """The last part of every module that a file imports, and the first of those that are not ours."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [
            name.rpartition(".")[2] if name.startswith("roamcast.proxy") else name.partition(".")[0]
            for name in names
        ]
    return found
