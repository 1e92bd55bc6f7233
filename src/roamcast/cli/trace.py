"""`roamcast trace`: visits of clients at brokers, from real traces or generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.cli.output import emit_json, table
from roamcast.cli.spark import Master, spark_session
from roamcast.cli.usage import AsJson, new_group, option, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from roamcast.pipeline.sightings import Rules
    from roamcast.simulator.movement import Visit

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV files, also .csv.gz and .zip.")]
Out = Annotated[Path, typer.Option(help="File for the visits: client,broker,attach_s,leave_s.")]
Overlay = Annotated[
    Path | None,
    typer.Option(help="File for an overlay, the shortest tree between the brokers (--topology file:PATH)."),
]
Away = Annotated[float, typer.Option(help="Seconds without a sighting after which a client counts as gone.")]
PingPong = Annotated[
    float, typer.Option(help="Shorter absences at another broker do not count as moves, in seconds.")
]
Column = Annotated[
    list[str] | None,
    typer.Option(metavar="OURS=THEIRS", help="Name of a column in the files. Repeatable."),
]

GENERATE = "roamcast trace generate --clients 50 --side 5 --out trace.csv"


def register(app: typer.Typer) -> None:
    group = new_group("Traces: where clients were attached, and when.", examples=[GENERATE])
    app.add_typer(group, name="trace")
    group.command("generate", epilog=show_examples(GENERATE))(generate)
    importers = new_group(
        "Make a trace of visits from other data.",
        examples=["roamcast trace import gps 2016-11-2*.csv.gz --cells 7 --out buses.csv"],
    )
    group.add_typer(importers, name="import")
    importers.command("wifi", epilog=show_examples("roamcast trace import wifi wlan.csv.zip --out wifi.csv"))(
        import_wifi
    )
    importers.command(
        "gps", epilog=show_examples("roamcast trace import gps day.csv.gz --sites depots.csv --out buses.csv")
    )(import_gps)


def generate(
    out: Out,
    clients: int = option(100, "Number of clients."),
    side: int = option(6, "Brokers are those of the topology grid:SIDE."),
    duration: float = option(86_400.0, "Length of the trace, in seconds."),
    stay: float = option(3_600.0, "Mean stay at a client's places, in seconds."),
    passing: float = option(120.0, "Mean stay at a broker on the way, in seconds.", "--pass"),
    places: int = option(3, "Number of places that a client moves between."),
    wrong_turns: float = option(0.1, "Probability of a wrong turn, 0 to 1."),
    seed: int = option(0, "Seed of the trace."),
    as_json: AsJson = False,
) -> None:
    """Generate a trace: clients that move between a few places each along the streets of a grid."""
    from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

    settings = TraceSettings(side, clients, duration, stay, passing, places, wrong_turns, seed)
    settings.check()
    visits = write_trace(out, generate_trace(settings))
    show({"clients": clients, "brokers": side**2, "visits": visits, "out": str(out)}, as_json)


def import_wifi(
    files: Files,
    out: Out,
    overlay: Overlay = None,
    by: str = option("spot", "What counts as a broker: spot (its radios together) or room."),
    away: Away = 1800.0,
    ping_pong: PingPong = 900.0,
    column: Column = None,
    master: Master = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Compute visits from snapshots that list devices by access point.

    A device that is listed at several spots at once is at the one whose unbroken run of listings began last,
    because entries remain after a device has gone. If several runs began at the same time, the device stays
    where it was, or else is at the first spot by name.
    """
    from roamcast.pipeline import wifi
    from roamcast.pipeline.sightings import Rules, read_table, readable

    if by not in ("spot", "room"):
        raise InputError(f"--by {by!r}: valid are spot and room")
    columns = renamed(wifi.COLUMNS, column)
    with spark_session(master) as spark, readable(files) as plain:
        listed = wifi.listings(read_table(spark, plain, columns), "spot" if by == "spot" else "room").cache()
        rules = Rules(away, wifi.snapshot_gap_s(listed), ping_pong)
        finish(wifi.sightings(listed), rules, out, as_json)
        if overlay is not None:
            from math import dist

            from roamcast.models.spanning_tree import spanning_tree

            write_overlay(spanning_tree(wifi.positions(listed), dist), overlay)


def import_gps(
    files: Files,
    out: Out,
    overlay: Overlay = None,
    cells: int | None = option(None, "Resolution of H3 cells, each a broker: 7 if there are no sites."),
    sites: Path | None = option(
        None, "CSV file broker,latitude,longitude: a point belongs to the nearest site."
    ),
    speed_max: float = option(40.0, "Highest possible speed, in metres per second."),
    away: Away = 900.0,
    ping_pong: PingPong = 300.0,
    column: Column = None,
    master: Master = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Compute visits from GPS points; points with impossible speeds are dropped."""
    from roamcast.pipeline import gps
    from roamcast.pipeline.sightings import Rules, read_table, readable

    if cells is not None and sites is not None:
        raise InputError("--cells and --sites: give one of them")
    if not 0.0 < speed_max < float("inf"):
        raise InputError(f"--speed-max {speed_max}: valid is a number of metres per second above 0")
    places = gps.read_sites(sites) if sites is not None else None
    columns = renamed(gps.COLUMNS, column)
    with spark_session(master) as spark, readable(files) as plain:
        points = gps.possible(gps.points(read_table(spark, plain, columns)), speed_max)
        seen = gps.by_site(points, places) if places else gps.by_cell(points, 7 if cells is None else cells)
        visits = finish(seen, Rules(away, 60.0, ping_pong), out, as_json)
        if overlay is not None:
            from roamcast.models.spanning_tree import spanning_tree

            used = [row.broker for row in visits.select("broker").distinct().collect()]
            where = {name: places[name] for name in used} if places else gps.cell_positions(used)
            write_overlay(spanning_tree(where, gps.distance_between_m), overlay)


def finish(sightings: DataFrame, rules: Rules, out: Path, as_json: bool) -> DataFrame:
    """Write the visits, with times relative to the first one, and print the result."""
    from pyspark.sql import functions as fn

    from roamcast.pipeline.sightings import visits_of
    from roamcast.pipeline.visits import moves
    from roamcast.simulator.trace_generator import write_trace

    found = visits_of(sightings, out.stem, rules).cache()
    start_s = found.agg(fn.min("attach_s")).collect()[0][0]
    if start_s is None:
        raise InputError("no sighting in these files could be used; are the columns right (--column)?")
    visits = found.select(
        "run", "client", "broker",
        (fn.col("attach_s") - start_s).alias("attach_s"), (fn.col("leave_s") - start_s).alias("leave_s"),
    ).cache()  # fmt: skip
    written = write_trace(out, by_client(visits))
    row = visits.agg(
        fn.countDistinct("client").alias("clients"), fn.countDistinct("broker").alias("brokers"),
        fn.max("leave_s").alias("duration_s"),
    ).collect()[0]  # fmt: skip
    about = {**row.asDict(), "visits": written, "moves": moves(visits).count(), "starts_at_s": start_s}
    show({**about, "out": str(out)}, as_json)
    return visits


def by_client(visits: DataFrame) -> Iterator[tuple[str, list[Visit]]]:
    """Yield each client with its visits in order; only one client's visits are held at a time."""
    from roamcast.simulator.movement import Visit

    rows = visits.orderBy("client", "attach_s").toLocalIterator()
    for client, of_client in groupby(rows, key=lambda row: str(row.client)):
        yield client, [Visit(row.broker, row.attach_s, row.leave_s) for row in of_client]


def renamed(columns: Mapping[str, str], given: list[str] | None) -> dict[str, str]:
    """Map our column names to those of the files."""
    result = dict(columns)
    for text in given or []:
        ours, equals, theirs = text.partition("=")
        if not equals or ours not in result:
            raise InputError(f"--column {text!r}: expected OURS=THEIRS with one of {', '.join(result)}")
        result[ours] = theirs
    return result


def show(about: dict[str, object], as_json: bool) -> None:
    if as_json:
        emit_json(about)
    else:
        table(["what", "value"], [[name.replace("_", " "), value] for name, value in about.items()])


def write_overlay(edges: list[tuple[str, str]], file: Path) -> None:
    """Write the overlay in the format that the simulator reads as topology file:PATH."""
    try:
        file.write_text("".join(f"{one} {other}\n" for one, other in edges), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None
