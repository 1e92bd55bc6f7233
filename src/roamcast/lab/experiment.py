"""Claims, the experiments that check them, and what an experiment finds.

A claim is a sentence of a published document that can be checked; `claims.csv` has all of them. An experiment
checks one or more claims: a `Sweep` runs its jobs, and the experiment returns `Findings` with one outcome for
each claim. A claim that does not hold is a valid finding.

A new experiment is a function marked with `checks`, in a module that has a line in `catalogue`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from roamcast.errors import InputError, did_you_mean
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["exact", "order", "shape", "erratum"]
"""exact: a number or sequence that must be reproduced; order: which is better; shape: how a curve bends;
erratum: the document contradicts itself, and both readings are shown."""

Parts = Mapping[str, bool | None]
"""Parts of a claim, each named by what is wrong if the part does not hold. None: undecided."""


@dataclass(frozen=True)
class Claim:
    id: str
    kind: Kind
    text: str
    paper: str = ""
    """Value in the document, for comparison with the measurement."""
    why: str = ""
    """What decides it where it does not hold, or what is to be known about its figures."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"claim {self.id}: kind {self.kind!r}; valid: {', '.join(get_args(Kind))}")

    def outcome(self, holds: bool | None, figures: Mapping[str, object], note: str = "") -> Outcome:
        return Outcome(self.id, self.kind, holds, self.paper, dict(figures), note)

    def open(self, note: str) -> Outcome:
        """Leave the claim undecided; the note says why."""
        return self.outcome(None, {}, note)

    def judge(
        self, parts: Parts, figures: Mapping[str, object], *, why: str = "", notes: Iterable[str] = ()
    ) -> Outcome:
        """Judge a claim by its parts: it holds if all of them hold. If none is false, an undecided part
        leaves it open.

        The note lists the false and the undecided parts, `why` in brackets if there are any, and `notes`.
        """
        unclear = [text for text, holds in parts.items() if holds is False]
        holds = False if unclear else None if None in parts.values() or not parts else True
        unclear += [f"undecided: {text}" for text, holds in parts.items() if holds is None]
        note = "; ".join(unclear) + (f" ({why})" if unclear and why else "")
        return self.outcome(holds, figures, "; ".join(filter(None, [note, *notes])))

    def in_settings(self, outcomes: Mapping[str, Outcome]) -> Outcome:
        """Judge the claim in several settings: the document's own setting, the first, decides."""
        notes = [
            f"setting {name}: {one.verdict}" + (f", {one.note}" if one.note else "")
            for name, one in outcomes.items()
        ]
        if any(one.holds is not True for one in outcomes.values()):
            notes.append(self.why)
        return replace(
            next(iter(outcomes.values())),
            figures={f"setting {name}": one.figures for name, one in outcomes.items()},
            note="; ".join(filter(None, notes)),
            by_setting={name: one.verdict for name, one in outcomes.items()},
        )


@cache
def known_claims() -> dict[str, Claim]:
    with Path(__file__).with_name("claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: Claim(**row) for row in csv.DictReader(file)}  # type: ignore[arg-type]


def claim(id: str) -> Claim:
    """Return a claim of `claims.csv`."""
    return known_claims()[id]


@dataclass(frozen=True)
class Outcome:
    """Verdict on one claim."""

    claim: str
    kind: Kind
    holds: bool | None
    """None: undecided, and `note` says why."""
    paper: str
    """Value in the document."""
    figures: dict[str, object]
    """Measured values, and the thresholds they are compared with."""
    note: str = ""
    by_setting: dict[str, str] = field(default_factory=dict)
    """Verdict in each setting, the document's first, if the document's setting is not the one chosen here."""

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "open"}[self.holds]


@dataclass
class Findings:
    """Everything that an experiment returns."""

    outcomes: list[Outcome]
    tables: dict[str, list[Row]] = field(default_factory=dict)
    """Name to rows."""
    figures: Mapping[str, Callable[[Figure], None]] = field(default_factory=dict)
    """Name to a function that draws on an empty figure, usually a `Chart`."""


Run = Callable[[bool, "Sweep"], Findings]
R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class Experiment:
    id: str
    title: str
    claims: tuple[Claim, ...]
    run: Run
    """Called with True for a smaller setting."""
    run_on_trace: Callable[[Sweep, Path, Path], Findings] | None = None
    """Runs on a user's trace: called with the trace file and the file with an overlay of its brokers."""


EXPERIMENTS: dict[str, Experiment] = {}
"""Registered experiments by id; `catalogue` fills it."""


def checks(
    id: str, title: str, *claims: Claim, on_trace: Callable[[Sweep, Path, Path], Findings] | None = None
) -> Callable[[R], R]:
    """Register the decorated function as the experiment that checks these claims. Every claim belongs to one
    experiment, and every id is unique.
    """

    def register(run: R) -> R:
        experiment = Experiment(id, title, claims, run, on_trace)
        taken = {name for known in EXPERIMENTS.values() for name in names_of(known)}
        for name in names_of(experiment):
            if name in taken:
                raise InputError(f"experiment {id}: the id {name!r} is taken; give it another")
        EXPERIMENTS[id] = experiment
        return run

    return register


def names_of(experiment: Experiment) -> list[str]:
    """The ids that select an experiment: its own and those of its claims."""
    return [experiment.id, *(claim.id for claim in experiment.claims)]


def select(experiments: Sequence[Experiment], ids: Iterable[str]) -> dict[Experiment, list[Claim]]:
    """Return the experiments to run for these ids, and the selected claims of each.

    An experiment's id stands for all its claims; no id at all stands for everything.
    """
    wanted = list(dict.fromkeys(ids)) or [experiment.id for experiment in experiments]
    known = [name for one in experiments for name in names_of(one)]
    for name in wanted:
        if name.lower() not in map(str.lower, known):
            hint = did_you_mean(name, known) or "`roamcast lab list` shows all"
            raise InputError(f"there is no claim or experiment {name!r}; {hint}")
    called = {name.lower() for name in wanted}
    chosen: dict[Experiment, list[Claim]] = {}
    for experiment in experiments:
        whole = experiment.id.lower() in called
        claims = [claim for claim in experiment.claims if whole or claim.id.lower() in called]
        if claims:
            chosen[experiment] = claims
    return chosen


def conduct(
    experiment: Experiment, quick: bool, sweep: Sweep, trace: tuple[Path, Path] | None = None
) -> Findings:
    """Run an experiment and check that it returns exactly one outcome for each of its claims."""
    if trace is None:
        findings = experiment.run(quick, sweep)
    elif experiment.run_on_trace is not None:
        findings = experiment.run_on_trace(sweep, *trace)
    else:
        raise InputError(f"experiment {experiment.id}: does not accept a trace")
    said = sorted(outcome.claim for outcome in findings.outcomes)
    if said != sorted(claim.id for claim in experiment.claims):
        raise RuntimeError(f"experiment {experiment.id} returned outcomes for the wrong claims: {said}")
    return findings


def as_row(outcome: Outcome, experiment: Experiment) -> dict[str, Any]:
    """Return an outcome as plain data."""
    return {**asdict(outcome), "experiment": experiment.id}
