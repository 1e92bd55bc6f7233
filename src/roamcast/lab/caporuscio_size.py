"""Size of the mobility service, and which of its modules depend on a particular broker, as found in the
source.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

import roamcast.proxy
from roamcast.proxy.adapter import KINDS

CORE = ("service", "ahead", "buffers", "messages", "steps", "errands", "store")
"""Modules with the protocol and its state."""
AROUND = ("adapter", "base", "driver", "client", "wire", "discovery", "config", "monitor")
"""Modules around the core: sockets, the client library, configuration."""
CODECS = {"activemq": ("stomp",)}
"""Modules that belong to an adapter besides its own file."""


@dataclass(frozen=True)
class Sizes:
    core: int
    around: int
    adapters: dict[str, int]
    """Lines of each adapter, by kind of broker."""
    leaks: list[tuple[str, str]]
    """Imports that only adapters should have, in other modules: (module, imported name)."""
    looked_at: int
    """Number of modules searched that are not adapters."""


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
    """Count the lines with code: without comments, docstrings and empty lines."""
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
    """Return what a file imports: the last part of names of ours, the first part of others."""
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
