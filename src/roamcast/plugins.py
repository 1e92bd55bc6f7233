"""Load mobility protocols that others wrote: from installed packages and from files named in a variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from roamcast.errors import InputError

PROTOCOLS = "roamcast.protocols"
"""Group of entry points; each names a module that registers protocols when it is imported."""
VARIABLE = "ROAMCAST_PROTOCOLS"
"""Environment variable with files (`my_protocol.py`) or modules, separated by commas."""


def load_protocols() -> None:
    """Import every module that registers its own protocols; InputError names one that cannot be imported."""
    if _is_announced():
        # It takes 2 MB, and most installations have no such package.
        from importlib.metadata import entry_points

        for entry in entry_points(group=PROTOCOLS):
            _load(f"entry point {entry.name} ({entry.value})", entry.load)
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        file = partial(_import_file, Path(name))
        _load(f"{VARIABLE}: {name}", file if name.endswith(".py") else partial(import_module, name))


def _is_announced() -> bool:
    """Whether some installed package may have entry points of the group."""
    for folder in sys.path:
        try:
            if Path(folder).is_file():
                return True  # An archive, into which only the library can look.
            for file in Path(folder or ".").glob("*.*-info/entry_points.txt"):
                if PROTOCOLS in file.read_text(errors="replace"):
                    return True
        except OSError:
            continue  # Nothing can be imported from a folder that may not be read.
    return False


def _load(what: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except Exception as error:
        raise InputError(f"{what}: cannot be loaded ({type(error).__name__}: {error})") from error


def _import_file(path: Path) -> None:
    if path.stem in sys.modules:
        return
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
