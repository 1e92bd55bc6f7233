"""Views over an event log, for questions in SQL: the same text for DuckDB and Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from roamcast.pipeline import audit_sql as sql
from roamcast.pipeline.engines import Engine


@dataclass(frozen=True)
class View:
    """A view: the meaning of a row, its columns, and its query."""

    what: str
    columns: tuple[str, ...]
    query: str


_BURST = ("publisher", "incarnation", "number", "notifications")


def views(engine: Engine) -> dict[str, View]:
    """Return the views by name, each after the views that it uses. The table `log` has all rows as
    written.
    """
    return {
        "published": View(
            "notifications that a broker took from a publisher",
            ("run", "time", "broker", "client", *_BURST, "size_bytes"),
            f"SELECT * FROM log WHERE {sql.usable('published')}",
        ),
        "deliveries": View(
            "notifications that a client recorded as delivered",
            ("run", "time", "client", "broker", *_BURST, "published_at", "delay_s", "reason"),
            f"SELECT *, time - published_at AS delay_s FROM log WHERE {sql.usable('delivered')}",
        ),
        "drops": View(
            "notifications that a broker gave up, and why",
            ("run", "time", "node", "client", *_BURST, "reason"),
            f"SELECT * FROM log WHERE {sql.usable('dropped')}",
        ),
        "subscriptions": View(
            "subscriptions of clients: when issued, settled everywhere, withdrawn, ended everywhere",
            ("run", "client", "filter", "issued_time", "settled_time", "ending_time", "ended_time"),
            sql.subscriptions(
                engine.dialect, f"(SELECT * FROM log WHERE {sql.usable(*sql.CHANGES, 'detached')})"
            ),
        ),
        "visits": View(
            "stays of a client at a broker, according to the client",
            ("run", "client", "broker", "came_from", "left_at", "attached_at", "until", "is_handoff"),
            sql.visits(f"(SELECT * FROM log WHERE {sql.usable('moved')}) AS rare"),
        ),
        "handoffs": View(
            "moves of a client from one broker to another, according to the client",
            ("run", "client", "came_from", "broker", "left_at", "attached_at", "away_s"),
            "SELECT *, attached_at - left_at AS away_s FROM visits WHERE is_handoff",
        ),
        "transfers": View(
            "sessions that a broker fetched from another",
            ("run", "time", "client", "broker", "peer"),
            f"SELECT * FROM log WHERE {sql.usable('handoff_finished')}",
        ),
        "sessions": View(
            "times during which a broker served a client",
            ("run", "client", "broker", "attached_at", "detached_at", "ended_because"),
            f"""SELECT *, CASE WHEN next_kind = 'detached' THEN next_reason END AS ended_because FROM (
                SELECT *, time AS attached_at, lead(time) OVER steps AS detached_at,
                    lead(kind) OVER steps AS next_kind, lead(reason) OVER steps AS next_reason
                FROM log WHERE node = broker AND {sql.usable("attached", "detached")}
                WINDOW steps AS (PARTITION BY run, node, client ORDER BY sequence)
            ) AS stepped WHERE kind = 'attached'""",
        ),
        "clients": View(
            "clients, with counts of what they did",
            ("run", "client", "first_time", "last_time", "sessions", "handoffs", "published", "delivered"),
            f"""SELECT run, client, min(time) AS first_time, max(time) AS last_time,
                {_counted("attached", "sessions", "node = broker")},
                {_counted("moved", "handoffs", "reason <> 'left' AND reason <> broker")},
                {_summed("published")}, {_summed("delivered")}
            FROM log WHERE client IS NOT NULL GROUP BY run, client""",
        ),
        "brokers": View(
            "brokers, with counts of what they did",
            ("run", "broker", "first_time", "last_time", "clients", "sessions", "published", "forwarded"),
            f"""SELECT run, node AS broker, min(time) AS first_time, max(time) AS last_time,
                count(DISTINCT CASE WHEN kind = 'attached' THEN client END) AS clients,
                {_counted("attached", "sessions", "node = broker")},
                {_summed("published")}, {_summed("forwarded")}
            FROM log WHERE node IN (SELECT broker FROM log WHERE broker IS NOT NULL)
            GROUP BY run, node""",
        ),
    }


def _counted(kind: str, name: str, condition: str) -> str:
    return f"count(CASE WHEN kind = '{kind}' AND {condition} THEN 1 END) AS {name}"


def _summed(kind: str) -> str:
    return f"CAST(coalesce(sum(CASE WHEN kind = '{kind}' THEN notifications END), 0) AS BIGINT) AS {kind}"


def ask(engine: Engine, question: str, rows_max: int) -> pa.Table:
    """Answer an SQL question over the views, with at most `rows_max` rows."""
    for name, view in views(engine).items():
        engine.define(name, f"SELECT {', '.join(view.columns)} FROM ({view.query}) AS {name}_made")
    return engine.fetch(f"SELECT * FROM ({question.strip().rstrip(';')}) AS answer LIMIT {rows_max}")
