"""`make compiled`: build a wheel whose core is compiled by mypyc, from the sources of this tree.

The sources stay as they are, and what is not compiled stays Python. mypyc refuses three things that the
sources need, so a copy of them (build/compiled) is rewritten before it is compiled. Every line keeps its
number, so tracebacks name the lines of the sources.

- Structs of msgspec lose their options in a compiled module: they move to a module beside it, which stays
  Python.
- A class variable must say that it is one: `__state__` and the slots.
- A class must say that Python code may derive from it, and may make instances without `__init__`, as
  snapshots do. Every class says so.
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
HEADER = str(Path(__file__).with_name("compiled.h"))

COMPILED = (
    "state.py", "errors.py", "protocol", "routing", "mobility", "broker", "mqtt/codec", "mqtt/server",
    "simulator/engine.py", "simulator/links.py", "simulator/network.py", "simulator/access.py",
    "simulator/checkers.py",
)  # fmt: skip
"""Files and folders of the package."""

LEFT_OUT = ("routing/location", "mobility/moving", "broker/moving", "broker/making.py", "mobility/phoenix.py")
"""Parts of these that stay Python: few messages pass through them, and mypyc refuses some of them.

Timestamps of `phoenix` are whole numbers where their type says float. Compiled code would make floats of
them, and states would differ.
"""

CLASS_VARIABLES = {
    "__state__": ("__state__", "State"),
    # mypyc drops the slots of a class, and snapshots have the attributes in their order.
    "__slots__": ("__compiled_slots__", "tuple[str, ...]"),
}
"""What the sources call it, what the copy calls it, and its type."""

SPECIAL = ("Protocol", "NamedTuple", "Enum", "IntEnum", "StrEnum")

FUTURE = "from __future__ import annotations"
OPTIONS = "compiler_options"
"""The module of the copy in which its classes find the decorator of mypyc; users do not need the package."""
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
        self._moved: list[str] = []
        """Names that are defined in the module beside this one."""

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
        self._moved = names = self._with_needs(structs)
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
        # They say that they are of this module, as those of the sources do.
        values.append(f"for _one in ({', '.join(structs)},):\n    _one.__module__ = {self.name!r}")
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

    def declare(self) -> None:
        """Say what mypyc must be told of classes."""
        for at, line in enumerate(self.lines):
            for name, (declared, kind) in CLASS_VARIABLES.items():
                if line.startswith(f"    {name} = "):
                    self.lines[at] = line.replace(name, f"{declared}: ClassVar[{kind}]", 1)
        for node in self._body:
            if isinstance(node, ast.ClassDef) and node.name not in self._moved and not _is_special(node):
                # Two empty lines are before every class.
                self.lines[_span(node)[0] - 1] = "@mypyc_attr(allow_interpreted_subclasses=True)"
        first = next((one for one in self._body if isinstance(one, ast.Import | ast.ImportFrom)), None)
        if first is not None:
            names = f"from typing import ClassVar; from {PACKAGE}.{OPTIONS} import mypyc_attr"
            at = first.lineno - 1
            line = self.lines[at]
            self.lines[at] = f"{line}; {names}" if line == FUTURE else f"{names}; {line}"

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


def _is_special(node: ast.ClassDef) -> bool:
    """Whether a class is of a kind that takes no options."""
    return any(ast.unparse(base).partition("[")[0] in SPECIAL for base in node.bases)


def _is_docstring(body: Sequence[ast.stmt], at: int) -> bool:
    return at < len(body) and isinstance(body[at], ast.Expr)


def _span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(one.lineno for one in decorators)])
    return start - 1, node.end_lineno or node.lineno


def prepare(folder: Path) -> list[Path]:
    """Copy the package into the folder and rewrite what is compiled."""
    package = folder / PACKAGE
    shutil.copytree(ROOT / "src" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = [Module(package, path) for path in chosen(package)]
    for module in modules:
        module.move_structs()
    for module in modules:
        module.declare()
        module.write()
    (package / f"{OPTIONS}.py").write_text(OPTIONS_SOURCE)
    return [module.path for module in modules]


OPTIONS_SOURCE = """from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    # Compiled classes do not ask for it.
    def mypyc_attr(**options):
        return lambda cls: cls
"""

BUILD = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools._distutils.ccompiler import CCompiler

files, level, out = sys.argv[1].split(":"), sys.argv[2], sys.argv[3]
extensions = mypycify(
    ["--config-file=mypy.ini", *files], opt_level=level, debug_level="0", multi_file=True,
    target_dir="c", group_name=LIBRARY,
)
for extension in extensions:
    if extension.include_dirs:  # The others only name a module of the first.
        extension.extra_compile_args = [*extension.extra_compile_args, "-include" + HEADER]

compile_in_turn = CCompiler.compile

def compile_at_once(compiler, sources, **given):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda source: compile_in_turn(compiler, [source], **given), sources)
        return [name for names in made for name in names]

# setuptools would compile the sources of an extension one after the other.
CCompiler.compile = compile_at_once
setup(
    ext_modules=extensions,
    script_args=["--quiet", "build", "--build-lib=lib", "bdist_wheel", "--dist-dir=" + out],
)
"""

SETTINGS = """[mypy]
strict = true
mypy_path = src
explicit_package_bases = true
implicit_reexport = true
ignore_missing_imports = true
"""


def build(target: Path, files: Sequence[Path], level: str, out: Path) -> None:
    """Compile into `target`/lib, and pack that into a wheel."""
    (target / "mypy.ini").write_text(SETTINGS)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, target)
    script = BUILD
    for name, value in {"LIBRARY": LIBRARY, "HEADER": HEADER}.items():
        script = script.replace(name, repr(value))
    names = ":".join(str(one.relative_to(target)) for one in files)
    done = subprocess.run(
        [sys.executable, "-c", script, names, level, str(out)],
        cwd=target, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"compile: mypyc or the C compiler refused the sources:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the package with a compiled core.")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "compiled", help="folder to build in")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheel")
    parser.add_argument("--level", default="2", help="optimisation level of the C compiler")
    given = parser.parse_args()
    target: Path = given.to.resolve()
    if shutil.which("cc") is None:
        sys.exit("compile: no C compiler was found (Debian: apt-get install gcc)")
    shutil.rmtree(target, ignore_errors=True)
    sys.path.insert(0, str(ROOT / "src"))
    files = prepare(target / "src")
    say(f"{len(files)} modules, some minutes")
    build(target, files, given.level, given.out.resolve())
    say(f"the wheel is in {given.out}; PYTHONPATH={target / 'lib'} runs it without installing it")


if __name__ == "__main__":
    main()
