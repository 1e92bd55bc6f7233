"""`roamcast journal`: show, verify and repair a broker's journal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.cli.output import emit_json
from roamcast.cli.usage import AsJson, new_group, option, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.storage.inspection import FileReport, JournalReport

EXIT_DAMAGED = 1

VERIFY = "roamcast journal verify site-a/journal"
REPAIR = "roamcast journal repair site-a/journal"
SHOW = "roamcast journal show site-a/journal --from 1000 --limit 20"

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The journal's folder, or a broker's data folder.")
]


def register(app: typer.Typer) -> None:
    group = new_group("Look into a broker's journal, or repair it.", examples=[VERIFY, SHOW, REPAIR])
    app.add_typer(group, name="journal")
    group.command("verify", epilog=show_examples(VERIFY, f"{VERIFY} --json"))(verify)
    group.command("repair", epilog=show_examples(REPAIR, f"{REPAIR} --accept-loss"))(repair)
    group.command("show", epilog=show_examples(SHOW, "roamcast journal show site-a --json"))(show)


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Check every file: exit code 0 if all files are intact (a torn last commit is no damage), 1
    otherwise."""
    from roamcast.storage import inspection

    with reading(folder):
        report = inspection.verify(folder, hash_if_state)
    if as_json:
        emit_json(
            {
                **report._asdict(),
                "files": [one._asdict() for one in report.files],
                "sound": report.is_sound,
            }
        )
    else:
        print_report(report)
    if not report.is_sound:
        raise typer.Exit(EXIT_DAMAGED)


def repair(
    folder: Folder,
    accept_loss: bool = option(
        False, "Give up the missing entries; without it nothing changes.", "--accept-loss"
    ),
    as_json: AsJson = False,
) -> None:
    """Make a damaged journal usable again: keep the entries before the damage, and give up the rest.

    Without --accept-loss the command shows what would be lost, and ends with exit code 1. After a repair
    peers may refuse the broker, because they remember a longer history ('roamcast broker accept-history').
    """
    from roamcast.storage import repair as repairing
    from roamcast.storage.inspection import find_journal

    with reading(folder):
        place = find_journal(folder)
        loss = repairing.repair(place) if accept_loss else repairing.find_loss(place)
    if as_json:
        told = {} if loss is None else {**loss._asdict(), "entries": loss.entries}
        emit_json({"folder": str(place), "damaged": loss is not None, "repaired": accept_loss, **told})
    elif loss is None:
        print("nothing to repair")
    else:
        print(loss.damage)
        lost = count(loss.entries, "acknowledged entry", "acknowledged entries")
        print(f"{'kept' if accept_loss else 'would keep'}: entries up to {loss.last_kept}")
        print(f"{'given up' if accept_loss else 'would give up'}: {lost}, and all later ones")
        if not accept_loss:
            print("nothing was changed; repair with --accept-loss", file=sys.stderr)
    if loss is not None and not accept_loss:
        raise typer.Exit(EXIT_DAMAGED)


def hash_if_state(data: memoryview) -> str:
    """Return the hash of a broker's state; "" for the snapshot of a proxy, which has none."""
    from roamcast.protocol.snapshot import hash_of

    try:
        return hash_of(data)
    except InputError:
        return ""


def print_report(report: JournalReport) -> None:
    for one in report.files:
        print(line_of(one))
    if report.problem is not None:
        print(f"a broker refuses this journal: {report.problem}")
        return
    begin = f"the snapshot after entry {report.snapshot}" if report.snapshot is not None else "the beginning"
    cut = f", cuts {report.cut_bytes} torn bytes" if report.cut_bytes else ""
    print(f"recovery starts from {begin}, replays {count(report.entries, 'entry', 'entries')}{cut}")
    if report.in_use_by is not None:
        print(f"in use by process {report.in_use_by}: the result may be outdated", file=sys.stderr)


def line_of(one: FileReport) -> str:
    if one.kind == "snapshot":
        held = f"state after entry {one.last}"
    elif one.entries:
        held = f"entries {one.first} to {one.last} in {count(one.commits, 'commit', 'commits')}"
    else:
        held = "no entries"
    size = f"{held}, {one.size_bytes:,} bytes, version {one.version}, replay {one.replay}"
    size += f", state hash {one.state_hash}" if one.state_hash else ""
    if one.damage is not None:
        # Figures up to the damage, if the head of the file was readable.
        return f"{one.file}: DAMAGED{f' after {size}' if one.version else ''}: {one.damage}"
    return f"{one.file}: whole, {size}" + (f" ({one.note})" if one.note else "")


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def show(
    folder: Folder,
    first: int = option(1, "The number of the first entry.", "--from", min=1),
    limit: int = option(100, "Maximum number of entries.", min=1),
    as_json: AsJson = False,
) -> None:
    """Show entries: each has the inputs of one turn of the broker, with the time of that turn."""
    from json import dumps

    from roamcast.broker.inputs import decode_entry
    from roamcast.storage.inspection import show_entries

    with reading(folder):
        entries = show_entries(folder, first, decode_entry)
        shown = list(islice(entries, limit))
        more = next(entries, None) is not None
    missing = [
        (one.sequence + 1, other.sequence - 1)
        for one, other in pairwise(shown)
        if other.sequence != one.sequence + 1
    ]
    if as_json:
        emit_json({"entries": [one._asdict() for one in shown], "missing": missing, "more": more})
        return
    for one in shown:
        content = dumps(one.content, ensure_ascii=False)
        print(f"{one.sequence} (segment {one.segment}, {one.size_bytes:,} bytes): {content}")
    for start, end in missing:
        print(f"entries {start} to {end} cannot be read; 'roamcast journal verify' says why", file=sys.stderr)
    if more:
        print(f"more entries: --from {shown[-1].sequence + 1}", file=sys.stderr)
    elif not shown:
        print("no entries", file=sys.stderr)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn an error of reading the folder into one line."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; name that of a journal")
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{error.filename or folder}: cannot be read ({reason})") from None
