"""Audits what each subscriber should have received, and what it did receive.

The audit is an oracle of its own. What was owed follows from the rows `published`, `subscribed` and
`unsubscribed` and from the pipeline's own evaluation of the filters; arrivals are the clients' own rows. For
clients without records the acknowledgements recorded by brokers are used: such clients are listed, and their
missing deliveries are not counted as lost.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.filters.selector import parse
from roamcast.pipeline import audit_sql as sql
from roamcast.pipeline.audit_sql import CLIENT, COUNTS, INCARNATION, NODE, ROW
from roamcast.pipeline.engines import DUCKDB, KEPT, Desk, Engine, duck_engine
from roamcast.pipeline.matching import filter_table, problem_of_filter
from roamcast.pipeline.output import results
from roamcast.pipeline.places import Place
from roamcast.protocol.records import NO_LOCAL, SHARED, UNPROMISED

EVERY_ROW_MAX = 1_000_000
"""Up to this number of rows every row is compared with the one before it; in larger logs only suspicious
blocks."""

PROTOCOL = re.compile(r"(?:.*\bprotocol=)?([a-z]\w*(?::[a-z]\w*)?)")
EXAMPLES = 10
"""Number of findings among the figures; all of them are in a table."""
ON_ITS_WAY_S = 10.0
"""Longest assumed time of a notification from its publisher's broker to a new subscriber's."""
EDGE_SCHEMA = [
    (f"{edge}_{part}", kind)
    for edge in ("issued", "settled", "ending", "ended")
    for part, kind in (("time", pa.float64()), ("node", pa.string()), ("sequence", pa.int64()))
]
HELD_SCHEMA = pa.schema(
    [("run", pa.string()), ("client", pa.string()), ("filter", pa.string()), *EDGE_SCHEMA]
)


def protocol_of(run: str) -> str:
    """Return the mobility protocol in the name of a simulated run; any other run is its own group."""
    known = PROTOCOL.match(run)
    return known[1] if known else run


def audit(engine: Engine, made: Path, clock_error_s: float = 0.0) -> dict[str, Any]:
    """Audit the table `log`, and write the tables and the figures into a folder."""
    made.mkdir(exist_ok=True)
    desk, steps = engine.desk, Steps(engine)
    with steps.step("nodes"):
        health, publishers = _look_at_nodes(engine, made)
    with steps.step("names"):
        names = _name(engine, health, publishers)
    with steps.step("verdicts"):
        _judge(engine, names, clock_error_s, health.has_bursts)
    with steps.step("findings"):
        _find(engine, health.has_bursts)
        desk.write("findings", made / "findings")
    with steps.step("tables"):
        clients, handoffs = _write_tables(desk, names, made)
        broken = _breaks(engine, health)
        pq.write_table(broken, made / "breaks.parquet")
    by_brokers = pc.equal(clients.column("judged_by"), "brokers")
    figures = {
        **_totals(clients),
        "clients": _count_of(CLIENT, clients, names.clients),
        "clients_judged_by_brokers": pc.sum(by_brokers).as_py() or 0,
        "publishers": _count_of(("run", "publisher"), names.publishers),
        "published": int(pc.sum(names.publishers.column("published")).as_py() or 0),
        "handoffs": handoffs.num_rows,
        "runs": len(pc.unique(health.nodes.column("run"))),
        "records": health.total("rows"),
        "bad_rows": health.total("bad") + engine.unreadable() + names.unreadable_rows,
        "repeated_rows": health.total("repeated"),
        "missing_rows": health.total("missing"),
        "clock_jumps": pc.sum(pc.greater(broken.column("went_back_s"), 0)).as_py() or 0,
        "misnumbered": names.misnumbered,
        "protocols": _by_protocol(clients),
        "examples": desk.fetch(f"SELECT * FROM findings LIMIT {EXAMPLES}").to_pylist(),
        "steps": steps.taken,
    }
    (made / "audit.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


class Steps:
    """Cost of each step of a job: seconds, the engine's counters, and peak memory."""

    def __init__(self, engine: Engine) -> None:
        self.taken: dict[str, dict[str, float]] = {}
        self._engine = engine

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun, before = time.perf_counter(), self._engine.counters()
        for process in self._engine.processes():
            reset_peak(process)
        yield
        after = self._engine.counters()
        taken = {count: round(value - before[count], 2) for count, value in after.items()}
        peak_mb = sum(map(peak_mb_of, self._engine.processes()))
        self.taken[name] = {"wall_s": round(time.perf_counter() - begun, 3), **taken, "peak_mb": peak_mb}


def reset_peak(process: int) -> None:
    """Reset the peak memory of a process; Linux allows that for our own processes."""
    with suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def peak_mb_of(process: int) -> int:
    """Return the peak memory of a process since the reset; 0 if the system does not report it."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
    return 0


def audit_embedded(
    log: Place, out: Place, *, clock_error_s: float = 0.0, memory_mb: int | None = None
) -> dict[str, Any]:
    """Audit with DuckDB in this process: for logs that fit this machine."""
    with results(out) as output, duck_engine(log, output.folder / KEPT, memory_mb) as engine:
        return audit(engine, output.folder, clock_error_s)


# --- the rows ---


@dataclass(frozen=True)
class Health:
    """State of the nodes' logs."""

    nodes: pa.Table

    def total(self, column: str) -> int:
        return int(pc.sum(self.nodes.column(column)).as_py() or 0)

    @property
    def has_bursts(self) -> bool:
        return bool((pc.max(self.nodes.column("longest")).as_py() or 1) > 1)

    @property
    def broken(self) -> pa.Table:
        """Nodes whose log has gaps or whose clock went back."""
        is_broken = pc.or_(pc.greater(self.nodes.column("missing"), 0), self.nodes.column("went_back"))
        return self.nodes.filter(is_broken).select(list(NODE))


def _look_at_nodes(engine: Engine, made: Path) -> tuple[Health, pa.Table]:
    """Check the log of each node, and select the rare rows; afterwards every row occurs once. Return also the
    publishers.
    """
    _define_rows(engine, "SELECT * FROM log")
    nodes, *found = engine.side_by_side(lambda: engine.fetch(sql.NODES), *_selections(engine))
    health = Health(nodes)
    pq.write_table(nodes, made / "nodes.parquet")
    engine.desk.register("nodes", nodes)
    if health.total("repeated"):
        _define_rows(engine, engine.dialect.once("log", ROW))
        found = engine.side_by_side(*_selections(engine))
    return health, found[0]


def _define_rows(engine: Engine, query: str) -> None:
    engine.define("rows", query)
    for kind in ("published", "delivered", "acknowledged"):
        known = " AND publisher IS NOT NULL AND incarnation IS NOT NULL" if kind == "acknowledged" else ""
        engine.define(kind, f"SELECT * FROM rows WHERE {sql.usable(kind)}{known}")


def _selections(engine: Engine) -> tuple[Callable[[], Any], ...]:
    return lambda: engine.fetch(sql.PUBLISHERS), lambda: engine.gather("rare", sql.RARE_ROWS)


def _breaks(engine: Engine, health: Health) -> pa.Table:
    """Find where rows are missing from the log of a node, or its clock went back."""
    if health.total("rows") <= EVERY_ROW_MAX:
        return engine.fetch(sql.breaks(engine.dialect, "rows"))
    broken = health.broken
    if not broken.num_rows:
        return engine.desk.fetch(sql.NO_BREAKS)
    engine.share("broken", broken)
    join = "rows AS r JOIN broken AS b ON b.run = r.run AND b.node = r.node"
    return engine.fetch(
        sql.breaks(engine.dialect, f"(SELECT /*+ BROADCAST(b) */ r.* FROM {join}) AS broken_rows")
    )


# --- names ---


@dataclass(frozen=True)
class Names:
    """Clients, publishers and subscriptions of a log, with a number for every name.

    The numbers are assigned once, so they are equal in all tables and queries.
    """

    clients: pa.Table
    """`run`, `client` and `client_id` of everyone who ever subscribed."""
    publishers: pa.Table
    """`run`, `publisher`, `incarnation`, `publisher_id` and `incarnation_rank`, and the number of
    publishes.
    """
    held: pa.Table
    """Subscriptions by `client_id`, with the times at which they were issued, settled and withdrawn."""
    unreadable_rows: int
    """Rows with a filter that cannot be read."""

    @property
    def misnumbered(self) -> int:
        """Incarnations of publishers whose numbers have gaps or repetitions."""
        return sum(
            row["published"] != row["last"] - row["first"] + 1
            or row["sum"] != (row["first"] + row["last"]) * row["published"] // 2
            for row in self.publishers.select(["published", "first", "last", "sum"]).to_pylist()
        )


def _name(engine: Engine, health: Health, publishers: pa.Table) -> Names:
    """Number the names, and register tables of them."""
    desk = engine.desk
    held = _issued_early(desk.fetch(sql.subscriptions(DUCKDB)).cast(HELD_SCHEMA), health)
    terms = desk.fetch(sql.TERMS).to_pylist()
    joined = [_joined(row) for row in terms if row["reason"] == SHARED]
    held = pa.concat_tables([held, pa.Table.from_pylist(joined, HELD_SCHEMA)])
    texts = held.column("filter").unique().to_pylist()
    unreadable = [text for text in texts if problem_of_filter(text)]
    held = held.filter(pc.invert(pc.is_in(held.column("filter"), pa.array(unreadable, pa.string()))))
    clients = held.group_by(list(CLIENT)).aggregate([]).sort_by([(name, "ascending") for name in CLIENT])
    clients = clients.append_column("client_id", pa.array(range(len(clients)), pa.int32()))
    publishers = _publishers(publishers)
    held = held.join(clients, list(CLIENT)).combine_chunks()
    held = _with_own(_never_settled(held, terms), publishers, terms)
    engine.share("clients", clients)
    engine.share("publishers", publishers.select([*INCARNATION, "publisher_id", "incarnation_rank", "first"]))
    desk.register("held", held.drop_columns("client"))
    return Names(clients, publishers, held, _rows_with(desk, unreadable))


def _issued_early(held: pa.Table, health: Health) -> pa.Table:
    """Allow notifications in transit when a client subscribed: brokers' clocks are not compared.

    Clients of the simulator write under their own name; their brokers hold such notifications back.
    """
    columns = (health.nodes.column(name).to_pylist() for name in NODE)
    simulated = set(zip(*columns, strict=True))
    clients = zip(*(held.column(name).to_pylist() for name in CLIENT), strict=True)
    early_s = pa.array([0.0 if client in simulated else ON_ITS_WAY_S for client in clients], pa.float64())
    at = held.schema.get_field_index("issued_time")
    return held.set_column(at, "issued_time", pc.subtract(held.column("issued_time"), early_s))


def _joined(term: Mapping[str, Any]) -> dict[str, Any]:
    """Mark subscriptions of group members: a member may get any notification for the group."""
    return {**{name: term[name] for name in (*CLIENT, "filter")}, "issued_time": sql.LONG_AGO}


def _never_settled(held: pa.Table, terms: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Mark subscriptions whose notifications may be missing: filters on the client's own state cannot be
    evaluated here, and QoS 0 promises nothing."""
    own = {text for text in held.column("filter").unique().to_pylist() if parse(text).own}
    keys = ("run", "client", "filter")
    unpromised = {tuple(row[key] for key in keys) for row in terms if row["reason"] == UNPROMISED}
    rows = zip(*(held.column(key).to_pylist() for key in keys), strict=True)
    is_open = pa.array([key[2] in own or key in unpromised for key in rows], pa.bool_())
    for name, kind in (("settled_time", pa.float64()), ("settled_node", pa.string())):
        at = held.schema.get_field_index(name)
        held = held.set_column(at, name, pc.if_else(is_open, pa.scalar(None, kind), held.column(name)))
    return held


def _with_own(held: pa.Table, publishers: pa.Table, terms: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Add the number of the client as a publisher, if it does not want its own publishes."""
    keys = ("run", "client", "filter")
    without_own = {tuple(row[key] for key in keys) for row in terms if row["reason"] == NO_LOCAL}
    ids: dict[tuple[str, str], int] = {}
    if without_own:
        names = (publishers.column(name).to_pylist() for name in ("run", "publisher", "publisher_id"))
        ids = {(run, publisher): number for run, publisher, number in zip(*names, strict=True)}
    rows = zip(*(held.column(key).to_pylist() for key in keys), strict=True)
    own = [ids.get(key[:2]) if key in without_own else None for key in rows]
    return held.append_column("own_id", pa.array(own, pa.int32()))


def _publishers(found: pa.Table) -> pa.Table:
    """Return publishers numbered by name, and each one's incarnations in order."""
    found = found.sort_by([(name, "ascending") for name in INCARNATION])
    ids: list[int] = []
    ranks: list[int] = []
    pairs = zip(found.column("run").to_pylist(), found.column("publisher").to_pylist(), strict=True)
    for number, (_, incarnations) in enumerate(groupby(pairs)):
        count = sum(1 for _ in incarnations)
        ids += [number] * count
        ranks += range(count)
    return found.append_column("publisher_id", pa.array(ids, pa.int32())).append_column(
        "incarnation_rank", pa.array(ranks, pa.int32())
    )


def _rows_with(desk: Desk, filters: list[str]) -> int:
    """Return how many rows contain one of these filters."""
    if not filters:
        return 0
    desk.register("unreadable", pa.table({"filter": pa.array(filters, pa.string())}))
    query = "SELECT count(*) AS rows FROM rare AS r JOIN unreadable AS u ON u.filter = r.filter"
    rows: int = desk.fetch(query).to_pylist()[0]["rows"]
    return rows


# --- what came, beside what was owed ---


def _judge(engine: Engine, names: Names, clock_error_s: float, has_bursts: bool) -> None:
    """Create the table `verdicts`."""
    desk = engine.desk
    witnesses, lives = desk.fetch(sql.WITNESSES), desk.fetch(sql.LIVES)
    asks_brokers = bool(pc.any(pc.not_equal(witnesses.column("witness"), sql.WHOLE)).as_py())
    has_lives = bool(lives.num_rows)
    engine.share("witnesses", witnesses)
    if has_lives:
        engine.share("lives", lives)
    table = filter_table(names.held.column("filter").unique().to_pylist())
    desk.register("boxes", table.boxes)
    engine.share("wanted", desk.fetch("SELECT * FROM boxes JOIN held USING (filter)"))
    if table.unboxed:
        engine.share("held", desk.fetch("SELECT * FROM held"))
    engine.define_values("valued", sql.NUMBERED, table.values)
    engine.define("readable", "SELECT * FROM valued WHERE readable")
    engine.define("owed", sql.owed(table, engine.dialect, clock_error_s))
    engine.define("told", sql.told(has_lives, asks_brokers))
    engine.define("known", sql.TOLD)
    engine.define("came", sql.CAME)
    sides = ["owed", "came"]
    excused = desk.fetch(sql.EXCUSED_ONES)
    if excused.num_rows:
        engine.share("excused", excused)
        sides.append("excused")
    engine.gather(
        "verdicts",
        sql.verdicts(
            sides, engine.dialect, has_bursts=has_bursts, has_lives=has_lives, asks_brokers=asks_brokers
        ),
    )


def _find(engine: Engine, has_bursts: bool) -> None:
    """Make the table `findings`: read the log again, but only for suspicious streams."""
    desk = engine.desk
    suspicions = desk.fetch(sql.SUSPICIOUS_ARRIVALS).to_pylist()[0]
    if suspicions["came"]:
        engine.share("suspicious", desk.fetch(sql.SUSPICIOUS))
        engine.gather("suspects", sql.suspects(engine.dialect, has_bursts))
    else:
        desk.keep("suspects", sql.NONE_FOUND)
    asked_for = desk.fetch(sql.ASKED_FOR)
    if asked_for.num_rows:
        engine.share("asked_for", asked_for)
        engine.gather("published_ones", sql.published_ones(engine.dialect, has_bursts))
    else:
        desk.keep("published_ones", sql.NONE_FOUND)
    desk.keep("visits", sql.visits("rare WHERE kind = 'moved'"))
    desk.keep("findings", sql.FINDINGS)


# --- tables ---


def _write_tables(desk: Desk, names: Names, made: Path) -> tuple[pa.Table, pa.Table]:
    """Write the tables of streams, clients, publishers and handoffs; return those of clients and handoffs."""
    desk.keep("streams", sql.STREAMS)
    desk.write("streams", made / "streams")
    clients = desk.fetch(sql.CLIENTS)
    pq.write_table(clients, made / "clients.parquet")
    key = ["run", "publisher"]
    published = names.publishers.group_by(key).aggregate([("published", "sum")])
    sums = desk.fetch(sql.sums(*key))
    both = published.rename_columns([*key, "published"]).join(sums, key, join_type="full outer")
    counts = {name: pc.fill_null(both.column(name), 0) for name in ("published", *COUNTS)}
    publishers = pa.table({**{name: both.column(name) for name in key}, **counts})
    pq.write_table(publishers.sort_by([(name, "ascending") for name in key]), made / "publishers.parquet")
    handoffs = desk.fetch(sql.HANDOFFS)
    pq.write_table(handoffs, made / "handoffs.parquet")
    return clients, handoffs


# --- figures ---


def _count_of(key: tuple[str, ...], *tables: pa.Table) -> int:
    """Return the total of a count over the tables."""
    columns = list(key)
    together = pa.concat_tables(one.select(columns) for one in tables)
    return int(together.group_by(columns).aggregate([]).num_rows)


def _totals(table: pa.Table) -> dict[str, int]:
    return {name: int(pc.sum(table.column(name)).as_py() or 0) for name in COUNTS}


def _by_protocol(clients: pa.Table) -> dict[str, dict[str, int]]:
    protocols = pa.array([protocol_of(run) for run in clients.column("run").to_pylist()], pa.string())
    names = sorted(set(protocols.to_pylist()))
    return {name: _totals(clients.filter(pc.equal(protocols, name))) for name in names}


# --- compared with another observer ---


@dataclass(frozen=True)
class Disagreement:
    run: str
    what: str
    audit: int
    other: int


def counts_by_run(out: Path) -> dict[str, Counter[str]]:
    """Return the counts of each run from the tables of an audit."""
    counts: dict[str, Counter[str]] = {}
    streams = pq.read_table(out / "streams").group_by("run").aggregate([(name, "sum") for name in COUNTS])
    for row in streams.to_pylist():
        counts[row["run"]] = Counter({name: row[f"{name}_sum"] for name in COUNTS})
    publishers = pq.read_table(out / "publishers.parquet")
    for row in publishers.group_by("run").aggregate([("published", "sum")]).to_pylist():
        counts.setdefault(row["run"], Counter())["published"] = row["published_sum"]
    for run in pq.read_table(out / "handoffs.parquet", columns=["run"]).column("run").to_pylist():
        counts.setdefault(run, Counter())["handoffs"] += 1
    return counts


def disagreements(out: Path, verdicts: Mapping[str, Mapping[str, int]]) -> list[Disagreement]:
    """Return the differences between the audit and these verdicts (run to name to count), including
    missing runs."""
    counts = counts_by_run(out)
    # Whoever saw the run would not know of what was never published.
    known = {run: {"invented": 0, **verdict} for run, verdict in verdicts.items()}
    strange = {run: dict.fromkeys(of_run, 0) for run, of_run in counts.items() if run not in known}
    return [
        Disagreement(run, what, counts.get(run, Counter())[what], count)
        for run, verdict in {**known, **strange}.items()
        for what, count in verdict.items()
        if counts.get(run, Counter())[what] != count
    ]
