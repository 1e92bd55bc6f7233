"""`make compiled`: build the package with its core compiled by mypyc, from the sources of this tree.

The result is a copy of the package in build/compiled; whoever has that folder in PYTHONPATH runs it. The
sources stay as they are, and what is not compiled stays Python. mypyc refuses three things that the sources
need, so the copy is rewritten before it is compiled. Every line keeps its number, so tracebacks name the
lines of the sources.

- Structs of msgspec lose their options in a compiled module: they move to a module beside it, which stays
  Python.
- A class variable must say that it is one: `__state__` is declared so.
- A class that Python code derives from must say that it allows this (`OPEN`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "roamcast"
LIBRARY = "roamcast_core"

COMPILED = (
    "state.py", "errors.py", "protocol", "routing", "mobility", "broker", "mqtt/codec", "mqtt/server",
    "simulator/engine.py", "simulator/links.py", "simulator/network.py", "simulator/access.py",
    "simulator/checkers.py",
)  # fmt: skip
"""Files and folders of the package."""

LEFT_OUT = ("routing/location", "mobility/moving", "broker/moving", "broker/making.py")
"""Parts of these that stay Python: few messages pass through them, and mypyc refuses some of them."""

OPEN = {
    "broker/machine_base.py": ("MachineBase",),
    "broker/machine.py": ("BrokerMachine",),
    "broker/fronts.py": ("MqttFront", "PlainFront"),
    "mqtt/server/endpoint.py": ("Endpoint",),
    "mobility/base.py": ("MobilityProtocol",),
    "simulator/access.py": ("PlainAccess",),
    "simulator/engine.py": ("Engine",),
    "simulator/network.py": ("NetworkBase", "Network"),
}
"""Classes that classes in Python derive from; protocols of users, too."""

FUTURE = "from __future__ import annotations"
SUFFIX = "_values"
"""Of the name of the module that a module's structs move to."""


def say(text: str) -> None:
    print(f"compile: {text}", flush=True)


def chosen(package: Path) -> list[Path]:
    """The modules to compile."""
    found: list[Path] = []
    for name in COMPILED:
        place = package / name
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    out = [package / name for name in LEFT_OUT]
    return [
        path
        for path in found
        if path.name != "__init__.py" and not any(path == one or one in path.parents for one in out)
    ]


class Module:
    """One module on its way from the sources to what mypyc takes."""

    def __init__(self, package: Path, path: Path) -> None:
        self.path = path
        self.name = ".".join((PACKAGE, *path.relative_to(package).with_suffix("").parts))
        self.lines = path.read_text().splitlines()
        self._body = ast.parse(path.read_text()).body
        self._where: dict[str, int] = {}
        """Which statement defines a name."""
        for at, node in enumerate(self._body):
            for name in _defined(node):
                self._where[name] = at

    def move_structs(self) -> None:
        """Write the structs, with what they need of this module, into a module of their own."""
        module = importlib.import_module(self.name)
        structs = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == self.name
        ]
        if not structs:
            return
        names = self._with_needs(structs)
        moved = sorted({self._where[name] for name in names})
        moved = sorted({*moved, *(at + 1 for at in moved if _is_docstring(self._body, at + 1))})
        imports = [at for at, one in enumerate(self._body) if isinstance(one, ast.Import | ast.ImportFrom)]
        values = [""] * len(self.lines)
        for at in (*imports, *moved):
            start, end = _span(self._body[at])
            values[start:end] = self.lines[start:end]
        for at in moved:
            start, end = _span(self._body[at])
            self.lines[start:end] = [""] * (end - start)
        # Nothing of the module can have used them before the first of them was defined.
        first, _ = _span(self._body[moved[0]])
        self.lines[first] = f"from {self.name}{SUFFIX} import {', '.join(sorted(names))}"
        beside = self.path.with_name(f"{self.path.stem}{SUFFIX}.py")
        beside.write_text("\n".join(values) + "\n")

    def _with_needs(self, names: Iterable[str]) -> list[str]:
        found = dict.fromkeys(names)
        work = list(found)
        while work:
            for node in ast.walk(self._body[self._where[work.pop()]]):
                if isinstance(node, ast.Name) and node.id in self._where and node.id not in found:
                    found[node.id] = None
                    work.append(node.id)
        return list(found)

    def declare(self, open_classes: Sequence[str]) -> None:
        """Say what mypyc must be told of classes."""
        imports = ["from typing import ClassVar"]
        for at, line in enumerate(self.lines):
            self.lines[at] = line.replace("    __state__ = State(", "    __state__: ClassVar[State] = State(")
        for name in open_classes:
            starts = f"class {name}(", f"class {name}:"
            at = next(at for at, line in enumerate(self.lines) if line.startswith(starts))
            # Two empty lines are before every class.
            self.lines[at - 1] = "@mypyc_attr(allow_interpreted_subclasses=True)"
        if open_classes:
            imports.append("from mypy_extensions import mypyc_attr")
        at = self.lines.index(FUTURE)
        self.lines[at] = "; ".join((FUTURE, *imports))

    def write(self) -> None:
        self.path.write_text("\n".join(self.lines) + "\n")


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _is_docstring(body: Sequence[ast.stmt], at: int) -> bool:
    return at < len(body) and isinstance(body[at], ast.Expr)


def _span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(one.lineno for one in decorators)])
    return start - 1, node.end_lineno or node.lineno


def prepare(target: Path) -> list[Path]:
    """Copy the package into the folder and rewrite what is compiled."""
    package = target / PACKAGE
    if package.exists():
        shutil.rmtree(package)
    shutil.copytree(ROOT / "src" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = [Module(package, path) for path in chosen(package)]
    for module in modules:
        module.move_structs()
    for module in modules:
        if FUTURE in module.lines:
            module.declare(OPEN.get(str(module.path.relative_to(package)), ()))
        module.write()
    return [module.path for module in modules]


BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

files, level = sys.argv[1].split(":"), sys.argv[2]
extensions = mypycify(
    ["--config-file=mypy.ini", *files], opt_level=level, debug_level="0", multi_file=True,
    target_dir="c", group_name=LIBRARY,
)
sys.argv[1:] = ["--quiet", "build_ext", "--build-lib=.", "--build-temp=objects", "--parallel=JOBS"]
setup(name=LIBRARY, packages=[], ext_modules=extensions)
"""

SETTINGS = """[mypy]
strict = true
mypy_path = .
explicit_package_bases = true
implicit_reexport = true
ignore_missing_imports = true
"""


def build(target: Path, files: Sequence[Path], level: str, jobs: int) -> None:
    (target / "mypy.ini").write_text(SETTINGS)
    script = BUILD.replace("LIBRARY", repr(LIBRARY)).replace("JOBS", str(jobs))
    names = ":".join(str(one.relative_to(target)) for one in files)
    done = subprocess.run(
        [sys.executable, "-c", script, names, level], cwd=target, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"compile: mypyc or the C compiler refused the sources:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the package with a compiled core.")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "compiled", help="the folder to build in")
    parser.add_argument("--level", default="2", help="optimisation level of the C compiler")
    parser.add_argument("--jobs", type=int, default=2, help="C compilers at once")
    given = parser.parse_args()
    target: Path = given.to.resolve()
    target.mkdir(parents=True, exist_ok=True)
    if shutil.which("cc") is None:
        sys.exit("compile: no C compiler was found (Debian: apt-get install gcc)")
    sys.path.insert(0, str(ROOT / "src"))
    files = prepare(target)
    say(f"{len(files)} modules, some minutes")
    build(target, files, given.level, given.jobs)
    say(f"done: PYTHONPATH={target} runs the compiled core")


if __name__ == "__main__":
    main()
