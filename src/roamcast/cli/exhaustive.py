"""`roamcast fuzz --exhaustive`: explores every order of events in small worlds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from roamcast.cli.output import present, progress, table
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.simulator.explore import Outcome

COLUMNS = ("protocol", "world", "states", "steps", "depth", "ends", "local_steps")


def search_exhaustively(protocol: str, *, as_json: bool) -> bool:
    """Explore all states; True if an invariant broke."""
    from roamcast.mobility import find_protocol
    from roamcast.simulator.explore import INVARIANTS, Explorer
    from roamcast.simulator.small_worlds import PROTOCOLS, small_worlds

    names = PROTOCOLS if protocol == "all" else (find_protocol(protocol).name,)
    worlds = [world for name in names for world in small_worlds(name)]
    outcomes: list[Outcome] = []
    with progress("exploring") as report:
        for done, world in enumerate(worlds):
            report(done, len(worlds))
            outcomes.append(Explorer(world).search())
        report(len(worlds), len(worlds))
    result: dict[str, Any] = {
        "invariants": list(INVARIANTS),
        "states": sum(outcome.states for outcome in outcomes),
        "violations": sum(bool(outcome.violation) for outcome in outcomes),
        "worlds": [asdict(outcome) for outcome in outcomes],
    }
    present(result, _show, as_json)
    return bool(result["violations"])


def check_alone(**others: object) -> None:
    """Refuse options for drawing stories: an exhaustive search draws nothing."""
    for name, value in others.items():
        if value is not None:
            raise InputError(f"--{name} and --exhaustive exclude each other: small worlds are not drawn")


def _show(result: dict[str, Any]) -> None:
    rows = [[world[name] for name in COLUMNS] for world in result["worlds"]]
    table([name.replace("_", " ") for name in COLUMNS], rows, title="every order of events")
    for world in result["worlds"]:
        if world["violation"]:
            print(f"{world['protocol']}, {world['world']}: {world['violation']}")
            for number, step in enumerate(world["schedule"], start=1):
                print(f"  {number}. {step}")
        elif not world["is_complete"]:
            print(f"{world['protocol']}, {world['world']}: too many states, the search was cut short")
    print(f"{result['states']} states, {result['violations']} violations. Checked in each:")
    for text in result["invariants"]:
        print(f"  {text}")
