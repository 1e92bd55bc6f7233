"""`roamcast lab`: checks the claims of the published documents by experiment."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from roamcast.bench.interrupts import terminations_as_interrupts
from roamcast.cli.output import (
    emit_json,
    leaves,
    plain,
    prepare_new_folder,
    prepare_out_folder,
    progress,
    table,
)
from roamcast.cli.spark import spark_session
from roamcast.cli.usage import AsJson, argument, new_group, option, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.lab.experiment import Experiment, Findings
    from roamcast.lab.sweep import Sweep

EXIT_NOT_EXACT = 1
"""Exit code if an exact claim does not hold or a run crashed: this is an error of ours."""

Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Use a smaller setting that takes seconds, or about a minute for radio experiments."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Number of concurrent runs. [default: one per core]")
]
OnSpark = Annotated[
    str | None,
    typer.Option("--master", help="Distribute the runs with Spark at this URL, such as spark://HOST:PORT."),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Claims or experiments. [default: all]"),
]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", help="Folder for finished runs; a stopped command resumes from it."),
]
Repetitions = Annotated[
    int | None,
    typer.Option("--repetitions", min=1, help="Maximum number of runs per point, with different seeds."),
]
KeptOnly = Annotated[
    bool,
    typer.Option(
        "--kept-only",
        help="Run nothing: judge the runs of --runs in the largest complete setting; the page "
        "names their commits.",
    ),
]


def register(app: typer.Typer) -> None:
    group = new_group(
        "Check what the published documents claim, by experiment.",
        examples=["roamcast lab list", "roamcast lab check W6 --quick"],
    )
    app.add_typer(group, name="lab")
    group.command("list", epilog=show_examples("roamcast lab list --json"))(list_claims)
    group.command("run", epilog=show_examples("roamcast lab run wang-fig5 --quick --out fig5"))(run)
    group.command("check", epilog=show_examples("roamcast lab check W6 W7 --quick --json"))(check)
    group.command("report", epilog=show_examples("roamcast lab report W6 --quick --runs runs --out claims"))(
        report
    )


def list_claims(as_json: AsJson = False) -> None:
    """List every claim, the experiment that checks it, and its text."""
    from roamcast.lab.catalogue import experiments

    claims = [
        {"claim": claim.id, "kind": claim.kind, "experiment": experiment.id, "text": claim.text}
        for experiment in experiments()
        for claim in experiment.claims
    ]
    if as_json:
        emit_json({"claims": claims})
    else:
        table(["claim", "kind", "experiment", "claim"], [list(claim.values()) for claim in claims])


def run(
    id: str = argument(..., "An experiment, or a claim that it checks.", metavar="ID"),
    out: Path = option(..., "New folder for tables (metrics/), pictures (figures/) and outcomes.json."),
    quick: Quick = False,
    log: bool = option(False, "Write the event log of every run, too (logs/); they are large.", "--log"),
    trace: Path | None = option(
        None, "Your own trace for an experiment that takes one (comparison, for instance)."
    ),
    overlay: Path | None = option(None, "File with an overlay of the trace's brokers."),
    workers: Workers = None,
    master: OnSpark = None,
    as_json: AsJson = False,
) -> None:
    """Run one experiment and write all its results.

    Called again with the same folder, a stopped experiment continues.

    Exit code 1 if an exact claim does not hold or a run crashed. If another claim does not hold, that is a
    finding, not an error.
    """
    from roamcast.lab.catalogue import experiments
    from roamcast.lab.experiment import as_row, select
    from roamcast.lab.report import write_findings

    (experiment,) = select(experiments(), [id])
    given = given_trace(experiment, trace, overlay, quick)
    prepare_new_folder(out, "outcomes.json", "metrics", "figures", "logs")
    with new_sweep(workers, master, out.absolute() / "logs" if log else None, runs=out) as sweep:
        started = time.perf_counter()
        findings = watch(experiment, quick, sweep, given)
    wall_s = round(time.perf_counter() - started, 3)
    failures = [str(failure) for failure in sweep.failures]
    about = {"quick": quick, "wall_s": wall_s, "failed_runs": failures}
    try:
        write_findings(out, experiment, findings, about)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written to ({error.strerror or error})") from None
    conclude([as_row(outcome, experiment) for outcome in findings.outcomes], failures, wall_s, as_json)


def check(
    ids: Ids = None,
    quick: Quick = False,
    runs: Runs = None,
    repetitions: Repetitions = None,
    workers: Workers = None,
    master: OnSpark = None,
    as_json: AsJson = False,
) -> None:
    """Check claims: the text of the document, the measured value, and whether the claim holds.

    Each claim is printed when it is judged. Ctrl-C stops, with the verdicts so far.

    Exit code 1 if an exact claim does not hold or a run crashed. If another claim does not hold, that is a
    finding, not an error.
    """
    from roamcast.lab.catalogue import experiments
    from roamcast.lab.experiment import as_row, select

    chosen = select(experiments(), ids or [])
    rows: list[dict[str, Any]] = []
    stopped = False
    with new_sweep(workers, master, runs=runs) as sweep:
        sweep.repetitions = repetitions
        started = time.perf_counter()
        try:
            for experiment, claims in chosen.items():
                outcomes = watch(experiment, quick, sweep).outcomes
                asked = [claim.id for claim in claims]
                judged = [as_row(outcome, experiment) for outcome in outcomes if outcome.claim in asked]
                rows += judged
                if not as_json:
                    say(judged)
        except KeyboardInterrupt:
            stopped = True
    failures = [str(failure) for failure in sweep.failures]
    left = [claim.id for claims in chosen.values() for claim in claims][len(rows) :]
    conclude(rows, failures, round(time.perf_counter() - started, 3), as_json, left)
    if stopped:
        raise KeyboardInterrupt


def report(
    out: Path = option(..., "Folder for claims.md and claims/, its pictures and tables."),
    ids: Ids = None,
    quick: Quick = False,
    runs: Runs = None,
    kept_only: KeptOnly = False,
    workers: Workers = None,
    master: OnSpark = None,
) -> None:
    """Write one page with every claim: the text of the document, the measured value, whether it holds and
    why.

    An existing page keeps its entries of other experiments, and of those without kept runs.

    Exit code 1 if an exact claim does not hold or a run crashed.
    """
    from roamcast.lab.catalogue import experiments
    from roamcast.lab.claims_page import NOT_RUN, ClaimsPage
    from roamcast.lab.experiment import Findings, as_row, select

    chosen = select(experiments(), ids or [])
    prepare_out_folder(out)
    if kept_only and runs is None:
        raise InputError("--kept-only: name the folder of the runs with --runs")
    flags = [*(["--quick"] if quick else []), *([f"--runs {runs}"] if runs else [])]
    flags += ["--kept-only"] if kept_only else []
    page = ClaimsPage(out, " ".join(["roamcast lab report", *(ids or []), *flags, f"--out {out}"]))
    rows: list[dict[str, Any]] = []
    with new_sweep(workers, master, runs=runs, kept_only=kept_only) as sweep:
        for experiment in chosen:
            setting = largest_kept(experiment, sweep) if kept_only else Setting(quick)
            if setting is None:
                findings = Findings([claim.open("its runs are not kept") for claim in experiment.claims])
            else:
                setting.prepare(sweep)
                findings = watch(experiment, setting.quick, sweep)
            page.add(experiment, findings, str(setting or NOT_RUN), dict(sweep.commits))
            rows += [as_row(outcome, experiment) for outcome in findings.outcomes]
            say(rows[-len(findings.outcomes) :])
    page.write()
    failures = [str(failure) for failure in sweep.failures]
    print(f"{len(rows)} claims in {out / 'claims.md'}")
    judge(rows, failures)


class Setting(NamedTuple):
    """Scale of an experiment."""

    quick: bool
    repetitions: int | None = None

    def __str__(self) -> str:
        name = "quick setting" if self.quick else "full setting"
        if self.repetitions is None:
            return name
        return f"{name}, {self.repetitions} of its repetitions" if self.repetitions > 1 else f"{name}, once"

    def prepare(self, sweep: Sweep) -> None:
        sweep.repetitions, sweep.absent = self.repetitions, 0
        sweep.commits.clear()


SETTINGS = tuple(
    Setting(quick, count)
    for quick, counts in ((False, (None, 5, 4, 3, 2, 1)), (True, (None, 2, 1)))
    for count in counts
)
"""Settings, the largest first."""


def largest_kept(experiment: Experiment, sweep: Sweep) -> Setting | None:
    """Return the largest setting with all its runs kept, or None."""
    for setting in SETTINGS:
        setting.prepare(sweep)
        with suppress(Exception):  # Judges may fail on missing runs.
            experiment.run(setting.quick, sweep)
        if not sweep.absent:
            return setting
    sweep.commits.clear()
    return None


@contextmanager
def new_sweep(
    workers: int | None, master: str | None, logs: Path | None = None, runs: Path | None = None,
    kept_only: bool = False,
) -> Iterator[Sweep]:  # fmt: skip
    """Create the executor of runs: the cores of this machine, or Spark. Finished runs are kept in `runs`."""
    from roamcast.lab.kept import KeptRuns
    from roamcast.lab.sweep import Sweep

    kept = None
    if runs is not None:
        kept = KeptRuns(prepare_out_folder(runs, option="--runs"), any_code=kept_only)
        if len(kept):
            print(f"{len(kept)} finished runs are reused from {runs}", file=sys.stderr)
    if master is None:
        yield Sweep(workers, logs=logs, kept=kept, only_kept=kept_only)
        return
    with spark_session(master) as spark:
        from roamcast.pipeline.sweep import check_logs, spread

        if logs is not None:
            check_logs(spark, logs)
        yield Sweep(workers, logs=logs, spread=partial(spread, spark), kept=kept)


def given_trace(
    experiment: Experiment, trace: Path | None, overlay: Path | None, quick: bool
) -> tuple[Path, Path] | None:
    """Return the user's own trace and its options, if given."""
    if trace is None and overlay is None:
        return None
    if experiment.run_on_trace is None:
        takers = "comparison and learned-neighbours accept one"
        raise InputError(f"--trace: experiment {experiment.id} does not accept a trace; {takers}")
    if trace is None or overlay is None:
        raise InputError("--trace and --overlay: give both; `roamcast trace import` writes both")
    if quick:
        raise InputError("--quick: a trace is always replayed in full; give one of them")
    return trace, overlay


def watch(
    experiment: Experiment, quick: bool, sweep: Sweep, trace: tuple[Path, Path] | None = None
) -> Findings:
    """Run an experiment behind a progress bar."""
    from roamcast.lab.experiment import conduct

    with terminations_as_interrupts(), progress(experiment.id) as report:
        sweep.report = report
        return conduct(experiment, quick, sweep, trace)


def conclude(
    rows: list[dict[str, Any]], failures: list[str], wall_s: float, as_json: bool, left: Sequence[str] = ()
) -> None:
    """Print the verdicts and choose the exit code. `left`: claims that were not judged."""
    if as_json:
        counts = {name: sum(row["holds"] is value for row in rows) for name, value in VERDICTS.items()}
        about = {"not_judged": list(left)} if left else {}
        emit_json({"claims": plain(rows), **counts, **about, "failed_runs": failures, "wall_s": wall_s})
    else:
        show(rows)
        if left:
            print(f"not judged: {', '.join(left)}")
    if not left:
        judge(rows, failures)


def judge(rows: list[dict[str, Any]], failures: list[str]) -> None:
    """Name the runs that failed, and choose the exit code."""
    for failure in failures:
        print(f"roamcast: a run failed twice: {failure}", file=sys.stderr)
    if failures or any(row["kind"] == "exact" and row["holds"] is False for row in rows):
        raise typer.Exit(EXIT_NOT_EXACT)


VERDICTS = {"holds": True, "fails": False, "open": None}
WORDS = {True: "holds", False: "does not hold", None: "open"}


def say(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        note = f": {row['note']}" if row["note"] else ""
        print(f"{row['claim']} {WORDS[row['holds']]}{note}", flush=True)


def show(rows: list[dict[str, Any]]) -> None:
    summary = [[row["claim"], row["kind"], WORDS[row["holds"]], row["paper"], row["note"]] for row in rows]
    table(["claim", "kind", "verdict", "the document", "note"], summary)
    for row in rows:
        title = f"{row['claim']}: {row['experiment']}"
        table(["measured", "value"], leaves(row["figures"]), title=title)
