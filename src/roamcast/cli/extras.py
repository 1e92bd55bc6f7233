"""Name the extra of the package that a command needs and this installation does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*extra == ['\"](?P<extra>[\w-]+)['\"]")


def missing_extra(module: str, arguments: Sequence[str]) -> str:
    """Return the message for a failed import: which extra to install, or "" if no extra has the package."""
    package = module.partition(".")[0]
    extras = [extra for extra, name in _packages_of_extras() if name == package != "roamcast"]
    if not extras:
        return ""
    # A command with its own extra needs all of it, not only the missing package: `audit` for `roamcast
    # pipeline audit`, `pipeline` for the other commands of that group.
    every = {extra for extra, _ in _packages_of_extras()}
    extra = next((word for word in reversed(arguments[:2]) if word in every), extras[0])
    return f"this needs the package {package}, which is not installed; run: pip install 'roamcast[{extra}]'"


def _packages_of_extras() -> list[tuple[str, str]]:
    """Pairs of extra and package, in the order of pyproject.toml."""
    try:
        lines = requires("roamcast") or []
    except PackageNotFoundError:
        return []
    matches = filter(None, map(REQUIREMENT.match, lines))
    return [(match["extra"], match["name"].lower().replace("-", "_")) for match in matches]
