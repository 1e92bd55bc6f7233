"""`roamcast pipeline neighbours`: learns a model of where clients move."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.cli.output import emit_json, prepare_out_folder, progress, table
from roamcast.cli.spark import SMALL_ROWS, Master, need_spark, spark_session
from roamcast.cli.usage import AsJson, show_examples
from roamcast.errors import InputError

LOG = "roamcast pipeline neighbours --log run/log --out neighbours.json"
TRACE = "roamcast pipeline neighbours --trace trace.csv --degree 4 --out neighbours.json --figures figures"

TRACE_BYTES_PER_ROW = 40


def register(group: typer.Typer) -> None:
    group.command("neighbours", epilog=show_examples(LOG, TRACE))(neighbours)


# The defaults are those of ModelSettings, which cannot be imported where there is no PySpark; a test
# compares them.
def neighbours(
    out: Annotated[Path, typer.Option(help="File for the neighbour graph, which proactive loads.")],
    log: Annotated[Path | None, typer.Option(help="Folder of event logs to learn from.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace of visits to learn from.")] = None,
    learn_share: Annotated[
        float, typer.Option(help="Share of the time to learn from; predictions are tested on the rest.")
    ] = 0.7,
    degree: Annotated[int, typer.Option(help="Maximum number of neighbours of a broker.")] = 8,
    mass: Annotated[
        float, typer.Option(help="Keep the likeliest neighbours up to this total probability, 0 to 1.")
    ] = 1.0,
    k: Annotated[int, typer.Option(help="Hit rates for one to this many predictions.")] = 8,
    handoff: Annotated[
        float,
        typer.Option(help="Seconds to the next broker, beyond which a client counts as disconnected."),
    ] = 60.0,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate", help="Also judge models of higher order, by client and time of day; takes a while."
        ),
    ] = False,
    figures: Annotated[Path | None, typer.Option(help="Folder for pictures.")] = None,
    master: Master = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Learn where clients go next, and measure how reliable the model is.

    The graph is learned from the first part of the time; hit rates are measured on the rest. A Markov chain
    is fitted to the same part, and compared with where clients were later.
    """
    small = check_inputs(log, trace, master)
    from roamcast.lab.summary import write_json
    from roamcast.pipeline.mobility_model import ModelSettings, learn

    settings = ModelSettings(learn_share, degree, mass, k, handoff, evaluate)
    settings.check()
    prepare_out_file(out)
    if figures is not None:
        prepare_out_folder(figures, option="--figures")
    with spark_session(master, small=small) as spark:
        from roamcast.pipeline.session import watched
        from roamcast.pipeline.spark_engine import read_log
        from roamcast.pipeline.visits import read_visits, visits_of_log

        visits = visits_of_log(read_log(spark, log)) if log else read_visits(spark, trace or Path())
        with progress("learning where clients go next") as report, watched(spark, report):
            document = learn(visits, settings)
    document["about"]["made_at_s"] = round(time.time())
    write_json(out, document)
    if figures is not None:
        from roamcast.pipeline.figures import save_figures

        save_figures(document["about"], figures)
    show(document, as_json)


def check_inputs(log: Path | None, trace: Path | None, master: str) -> bool:
    """Check the input before Spark starts; return true if it is small."""
    if (log is None) == (trace is None):
        raise InputError("--log and --trace: give one of them")
    need_spark()
    from roamcast.pipeline.places import find_log_files
    from roamcast.pipeline.session import check_master
    from roamcast.pipeline.visits import check_trace

    check_master(master)
    if log is not None:
        return sum(find_log_files(log).values()) <= SMALL_ROWS
    assert trace is not None
    check_trace(trace)
    return trace.stat().st_size <= SMALL_ROWS * TRACE_BYTES_PER_ROW


def prepare_out_file(out: Path) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out}: {'is a folder' if out.is_dir() else 'its folder is not there'}")
    prepare_out_folder(out.parent)


def show(document: dict[str, Any], as_json: bool) -> None:
    about = document["about"]
    if as_json:
        emit_json(about)
        return
    counts = ("visits", "clients", "brokers", "moves_learned", "edges_learned", "edges_kept")
    table(["what", "value"], [[name.replace("_", " "), about[name]] for name in counts], title="Learned")
    if about["hit_rates"]:
        columns = list(about["hit_rates"][0])
        rows = [list(row.values()) for row in about["hit_rates"]]
        table(columns, rows, title="Next broker among the first k, later moves")
    if "evaluation" in about:
        show_evaluation(about["evaluation"])
    residence = about["residence"]
    test = residence.get("exponential") or {}
    shown = ("mean_s", "p50_s", "p95_s", "variation")
    rows = [[name.replace("_", " "), residence.get(name)] for name in shown]
    rows += [[f"exponential: {name}", value] for name, value in test.items()]
    rejected = f"{residence['brokers_rejected']} of {residence['brokers_tested']}"
    rows += [["brokers where it is rejected", rejected]]
    table(["residence times", "value"], rows)
    errors = about["chain"]["error"].items()
    table(["later positions of clients, predicted by", "wrong share"], [list(one) for one in errors])
    spots = [[row["broker"], row["share"], row["clients"], row["most_at_once"]] for row in about["hot_spots"]]
    table(["hot spot", "share of the time", "clients", "most at once"], spots[:10])


def show_evaluation(found: dict[str, Any]) -> None:
    """Print the models side by side, and how well they predict when clients leave."""
    columns = list(next(iter(found["models"].values()), {}))
    rows = [[name, *row.values()] for name, row in found["models"].items()]
    title = f"Later moves: {found['moves']:,}; the bound of clients' own ways is {found['bound_of_own_way']}"
    table(["model", *(name.replace("_", " ") for name in columns)], rows, title=title)
    calibrated = [list(row.values()) for row in found["calibration"]]
    table(["stays", "predicted to end within 5 min", "did"], calibrated)
