"""The audit of a synthetic log, written in SQL for DuckDB: what one machine can do with such a log.

It asks the questions of `roamcast pipeline audit` and writes the same tables, but it knows what it
gets: filters of one form, attributes of one form, one notification in a row. It is run in a process of
its own, with the log's folder, the folder for the tables, how many threads and how many megabytes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

COUNTS = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "invented")

HEALTH = """
CREATE TABLE nodes AS
WITH blocks AS (
    SELECT run, node, sequence >> 6 AS block, count(*) AS rows,
        bit_count(bit_or(1::UBIGINT << (sequence & 63)::UBIGINT)) AS different,
        min(sequence) AS first, max(sequence) AS last, min(time) AS earliest, max(time) AS latest,
        arg_min(time, sequence) AS time_of_first, arg_max(time, sequence) AS time_of_last,
        count(*) FILTER (WHERE kind IS NULL OR time IS NULL OR isnan(time)
            OR (kind IN ('published', 'forwarded', 'delivered')
                AND (publisher IS NULL OR incarnation IS NULL OR number IS NULL OR notifications IS NULL))
            OR (kind IN ('control', 'forwarded') AND (peer IS NULL OR hops IS NULL))) AS bad
    FROM log GROUP BY ALL
), seen AS (
    SELECT *, time_of_first > earliest OR time_of_last < latest OR coalesce(
        max(latest) OVER (PARTITION BY run, node ORDER BY block
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > earliest, false) AS went_back
    FROM blocks
)
SELECT run, node, sum(rows)::BIGINT AS rows, sum(bad)::BIGINT AS bad,
    (sum(rows) - sum(different))::BIGINT AS repeated,
    (max(last) - min(first) + 1 - sum(different))::BIGINT AS missing, bool_or(went_back) AS went_back
FROM seen GROUP BY ALL
"""

SUBSCRIPTIONS = """
CREATE TABLE held AS
WITH changes AS (
    SELECT *, sum((kind = 'subscribed' AND reason = 'issued')::INT)
        OVER (PARTITION BY run, client, filter ORDER BY time, node, sequence) AS round
    FROM log WHERE kind IN ('subscribed', 'unsubscribed')
)
SELECT run, client, filter,
    regexp_extract(filter, 'value >= ([0-9.e-]+)', 1)::DOUBLE AS low,
    regexp_extract(filter, 'value < ([0-9.e-]+)', 1)::DOUBLE AS high,
    regexp_extract(filter, 'zone = ''(z[0-9]+)''', 1) AS zone,
    min(time) FILTER (kind = 'subscribed' AND reason = 'issued') AS issued,
    min(time) FILTER (kind = 'subscribed' AND reason = 'settled') AS settled,
    min(time) FILTER (kind = 'unsubscribed' AND reason = 'issued') AS ending,
    min(time) FILTER (kind = 'unsubscribed' AND reason = 'settled') AS ended
FROM changes WHERE round > 0 GROUP BY run, client, filter, round
"""

PUBLISHED = """
CREATE VIEW published AS
WITH encoded AS (
    SELECT *, hex(attributes) AS digits FROM log WHERE kind = 'published'
), decoded AS (
    SELECT *, ('0x' || substr(digits, 17, 16))::UBIGINT AS bits,
        from_hex(substr(digits, 45, 10))::VARCHAR AS zone
    FROM encoded
)
SELECT *, (1.0 + (bits & 4503599627370495)::DOUBLE / 4503599627370496.0)
    * pow(2.0, ((bits >> 52) & 2047)::INT - 1023) AS value
FROM decoded
"""

VERDICTS = """
CREATE TABLE verdicts AS
WITH owed AS (
    SELECT run, h.client, p.publisher, incarnation, number,
        max(CASE WHEN p.time > settled AND (ending IS NULL OR p.time < ending) THEN 2 ELSE 1 END) AS standing
    FROM published p JOIN held h USING (run, zone)
    WHERE value >= low AND value < high AND p.time >= issued AND (ended IS NULL OR p.time <= ended)
    GROUP BY ALL
), came AS (
    SELECT run, client, publisher, incarnation, number, count(*) AS deliveries, min(sequence) AS first
    FROM log WHERE kind = 'delivered' GROUP BY ALL
), both_sides AS (
    SELECT *, CASE WHEN standing IS NOT NULL THEN first END AS in_order
    FROM owed FULL JOIN came USING (run, client, publisher, incarnation, number)
)
SELECT *, coalesce(min(in_order) OVER (PARTITION BY run, client, publisher
        ORDER BY incarnation DESC, number DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    < in_order, false) AS overtaken
FROM both_sides
"""

FINDINGS = """
CREATE TABLE findings AS
WITH suspects AS (
    SELECT * FROM verdicts WHERE standing IS NULL OR deliveries > 1 OR overtaken
        OR (standing = 2 AND deliveries IS NULL)
), lost AS (
    SELECT 'lost' AS kind, s.run, s.client, s.publisher, s.incarnation, s.number,
        p.time, p.broker, p.node, p.sequence, p.time AS published_at
    FROM suspects s JOIN log p ON p.kind = 'published' AND s.run = p.run AND s.publisher = p.publisher
        AND s.incarnation = p.incarnation AND s.number = p.number
    WHERE s.deliveries IS NULL
), came AS (
    SELECT CASE
            WHEN standing IS NULL THEN 'unexpected'
            WHEN d.sequence > s.first THEN 'duplicate'
            WHEN overtaken THEN 'out of order' END AS kind,
        s.run, s.client, s.publisher, s.incarnation, s.number,
        d.time, d.broker, d.node, d.sequence, d.published_at
    FROM suspects s JOIN log d ON d.kind = 'delivered' AND s.run = d.run AND s.client = d.client
        AND s.publisher = d.publisher AND s.incarnation = d.incarnation AND s.number = d.number
)
SELECT * FROM lost UNION ALL
SELECT * REPLACE (CASE WHEN kind = 'unexpected' AND NOT EXISTS (
        FROM log p WHERE p.kind = 'published' AND p.run = came.run AND p.publisher = came.publisher
            AND p.incarnation = came.incarnation AND p.number = came.number)
    THEN 'invented' ELSE kind END AS kind)
FROM came WHERE kind IS NOT NULL
"""

STREAMS = """
CREATE TABLE streams AS
WITH sums AS (
    SELECT run, client, publisher, count(*) FILTER (standing = 2) AS expected,
        coalesce(sum(deliveries), 0)::BIGINT AS delivered
    FROM verdicts GROUP BY ALL
), faults AS (
    SELECT run, client, publisher, count(*) FILTER (kind = 'lost') AS lost,
        count(*) FILTER (kind = 'duplicate') AS duplicates,
        count(*) FILTER (kind = 'out of order') AS out_of_order,
        count(*) FILTER (kind = 'unexpected') AS unexpected, count(*) FILTER (kind = 'invented') AS invented
    FROM findings GROUP BY ALL
)
SELECT run, client, publisher, expected, delivered, coalesce(lost, 0) AS lost,
    coalesce(duplicates, 0) AS duplicates, coalesce(out_of_order, 0) AS out_of_order,
    coalesce(unexpected, 0) AS unexpected, coalesce(invented, 0) AS invented
FROM sums LEFT JOIN faults USING (run, client, publisher)
"""

HANDOFFS = """
CREATE TABLE handoffs AS
WITH visits AS (
    SELECT run, client, broker, reason, time AS attached_at,
        lead(time) OVER steps AS until,
        max(CASE WHEN reason = 'left' THEN time END)
            OVER (PARTITION BY run, client ORDER BY time, sequence
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS left_at,
        sum((reason <> 'left' AND reason <> broker)::INT) OVER steps AS handoff
    FROM log WHERE kind = 'moved' WINDOW steps AS (PARTITION BY run, client ORDER BY time, sequence)
)
SELECT v.*, count(f.kind) AS findings
FROM visits v LEFT JOIN findings f ON f.run = v.run AND f.client = v.client
    AND f.time >= coalesce(v.left_at, v.attached_at) AND (v.until IS NULL OR f.time < v.until)
WHERE v.reason <> 'left' AND v.reason <> v.broker GROUP BY ALL
"""

STEPS = (HEALTH, SUBSCRIPTIONS, PUBLISHED, VERDICTS, FINDINGS, STREAMS, HANDOFFS)
TABLES = ("nodes", "findings", "streams", "handoffs")
FIGURES = f"""
SELECT {", ".join(f"sum({name})::BIGINT AS {name}" for name in COUNTS)},
    (SELECT count(*) FROM handoffs) AS handoffs,
    (SELECT sum(rows)::BIGINT FROM nodes) AS records,
    (SELECT count(*) FROM log WHERE kind = 'published') AS published,
    (SELECT sum(bad)::BIGINT FROM nodes) AS bad_rows,
    (SELECT sum(repeated)::BIGINT FROM nodes) AS repeated_rows,
    (SELECT sum(missing)::BIGINT FROM nodes) AS missing_rows,
    (SELECT count(*) FROM nodes WHERE went_back) AS clock_jumps
FROM streams
"""


def audit(log: Path, out: Path, cores: int, memory_mb: int) -> dict[str, float]:
    """Audit a log and write the tables; the figures, and how long it took."""
    import duckdb

    out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": cores,
        "memory_limit": f"{memory_mb}MB",
        "temp_directory": str(out / "spilled"),
    }
    with duckdb.connect(config=settings) as database:
        print("auditing", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        files = str(log / "*.parquet").replace("'", "''")
        database.execute(f"CREATE VIEW log AS FROM read_parquet('{files}')")
        for step in STEPS:
            database.execute(step)
        for table in TABLES:
            place = str(out / f"{table}.parquet").replace("'", "''")
            database.execute(f"COPY {table} TO '{place}' (FORMAT parquet)")
        answer = database.execute(FIGURES)
        names = [column[0] for column in answer.description]
        (values,) = answer.fetchall()
        wall_s = time.perf_counter() - begun
    return {**dict(zip(names, values, strict=True)), "wall_s": round(wall_s, 3)}


if __name__ == "__main__":
    folder, results, threads, megabytes = sys.argv[1:]
    print(json.dumps(audit(Path(folder), Path(results), int(threads), int(megabytes))))
