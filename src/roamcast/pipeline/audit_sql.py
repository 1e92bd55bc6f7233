"""The audit as SQL that Spark and DuckDB both run: one text, so that one set of rules decides.

Queries over `log` run in the engine. Their results are as large as the network (nodes, subscriptions, moves,
streams, findings); all other queries run at the desk (see engines.py).

Joins and sorts of millions of rows use numbers: client and publisher form one number (`stream`), incarnation
and number of a notification form another (`place`), which decreases, so that later ones sort first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roamcast.pipeline.engines import DUCKDB, Dialect
from roamcast.pipeline.matching import FilterTable, pairs_sql
from roamcast.protocol.records import (
    FREQUENT_KINDS,
    HELD,
    KINDS,
    LIFE_MARK,
    NEEDED,
    NO_LOCAL,
    NOTIFICATIONS_MAX,
    NUMBER_BITS,
    SHARED,
    UNPROMISED,
)

CLIENT_BITS = 32
BLOCK_BITS = 5
"""32 rows of a node are checked together: one bit per row fits into a number."""

MUST, MAY = 2, 1
"""Whether a matching subscription must or may receive the notification; the higher value wins."""
ACKNOWLEDGED, EXCUSED, APART = 3, 4, 5
"""Further marks of a notification; they are stored as negative numbers. In order: its broker has the client's
acknowledgement; its broker dropped it as MQTT requires; the client received it in a way for which exactly
once and in order are not promised."""

WHOLE, AWAY, TORN, UNTOLD = range(4)
"""Completeness of a client's own records, in order: complete; complete, and the client has left; the log of
one of its processes is cut off; there are none."""

SUSPICIONS = ("lost", "unacknowledged", "unwanted", "again or late")
"""What may be wrong with a notification. The judging query numbers them from 0: Spark sorts rows to find the
least text of a group, but not to find the least number.
"""

EXCUSES = ("session ended", "expired")
"""Reasons for which a broker may drop a notification."""

CHANGES = ("subscribed", "unsubscribed")
CHANGES_OF_FILTERS = (*CHANGES, "advertised", "unadvertised")
_CHANGE_REASONS = ", ".join(
    f"'{reason}'" for reason in ("issued", "settled", HELD, UNPROMISED, NO_LOCAL, SHARED)
)
_IS_NO_TIME = "isnan(time) OR abs(time) = CAST('Infinity' AS DOUBLE)"
RARE = (*CHANGES, "moved", "dropped", "detached")
"""Kinds of rows selected in one pass, because a pass takes as long for few rows as for many."""
RARE_COLUMNS = (
    "run", "sequence", "time", "node", "kind", "client", "broker", "publisher", "incarnation", "number",
    "notifications", "filter", "reason",
)  # fmt: skip

LEFT = "left"
"""The reason of a `moved` row of a client that disconnected."""

LONG_AGO = -1e300
"""Issue time of a subscription that was issued before the log began."""
EDGES = ("issued", "settled", "ending", "ended")
"""Events of a subscription in order; each has a position in the log, or none."""
PLACE = ("time", "node", "sequence")

NODE = ("run", "node")
ROW = (*NODE, "sequence")
CLIENT = ("run", "client")
INCARNATION = ("run", "publisher", "incarnation")

KINDS_OF_FINDINGS = {
    "lost": "lost",
    "duplicate": "duplicates",
    "out of order": "out_of_order",
    "unexpected": "unexpected",
    "invented": "invented",
    "unacknowledged": "unacknowledged",
}
"""Kind of finding to the column that counts it."""
COUNTS = ("expected", "delivered", *KINDS_OF_FINDINGS.values())
"""Counts in the tables and figures."""


# --- one row ---


OFTEN = ("forwarded", "delivered", "published", "acknowledged", *sorted(FREQUENT_KINDS - {"forwarded"}))
"""The most frequent kinds, which are tested first."""


def _in_order(kinds: Iterable[str]) -> list[str]:
    return sorted(kinds, key=lambda name: OFTEN.index(name) if name in OFTEN else len(OFTEN))


def is_bad(kinds: Iterable[str] = KINDS) -> str:
    """The condition that `problem` returns a text, in a shorter form: it is evaluated for every row of a
    log."""
    kinds = tuple(kinds)
    by_needs: dict[str, list[str]] = {}
    for kind in _in_order(kinds):
        lacks = [f"{field} IS NULL" for field in NEEDED[kind]]
        if kind in CHANGES_OF_FILTERS:
            lacks.append(f"reason NOT IN ({_CHANGE_REASONS})")
        by_needs.setdefault(" OR ".join(lacks) or "false", []).append(kind)
    whens = [f"WHEN {name} IS NULL THEN true" for name in (*ROW, "time", "kind")]
    whens.append(f"WHEN {_IS_NO_TIME} THEN true")
    fields = {field for kind in kinds for field in NEEDED[kind]}
    if "number" in fields:
        whens.append(f"WHEN number < 0 OR number >= {1 << NUMBER_BITS} THEN true")
    if "notifications" in fields:
        whens.append(f"WHEN notifications < 1 OR notifications > {NOTIFICATIONS_MAX} THEN true")
    whens += [f"WHEN {_is_one_of(names)} THEN {needs}" for needs, names in by_needs.items()]
    return f"(CASE {' '.join(whens)} ELSE true END)"


def _is_one_of(kinds: Sequence[str]) -> str:
    return f"kind IN ({', '.join(repr(kind) for kind in kinds)})"


def problem(kinds: Iterable[str] = KINDS) -> str:
    """Return why a row cannot be used, as a text; null if it can. `kinds` are the possible kinds of the
    row."""
    kinds = tuple(kinds)
    any_row = [f"WHEN {name} IS NULL THEN 'no {name}'" for name in (*ROW, "time", "kind")]
    any_row.append(f"WHEN {_IS_NO_TIME} THEN 'time is no number'")
    fields = {field for kind in kinds for field in NEEDED[kind]}
    lacking = " ".join(f"WHEN '{kind}' THEN {_lacking(kind)}" for kind in _in_order(kinds))
    parts = [f"CASE {' '.join(any_row)} END", f"CASE kind {lacking} ELSE 'unknown kind ' || kind END"]
    if "number" in fields:
        limit = 1 << NUMBER_BITS
        parts.append(
            f"CASE WHEN number < 0 OR number >= {limit} THEN 'number not within 0 to 2^{NUMBER_BITS}' END"
        )
    if "notifications" in fields:
        parts.append(
            f"CASE WHEN notifications < 1 OR notifications > {NOTIFICATIONS_MAX}"
            f" THEN 'notifications not within 1 to {NOTIFICATIONS_MAX}' END"
        )
    return f"coalesce({', '.join(parts)})"


def _lacking(kind: str) -> str:
    whens = [f"WHEN {field} IS NULL THEN '{kind} without {field}'" for field in NEEDED[kind]]
    if kind in CHANGES_OF_FILTERS:
        whens.append(f"WHEN reason NOT IN ({_CHANGE_REASONS}) THEN '{kind} neither issued nor settled'")
    return f"CASE {' '.join(whens)} END" if whens else "CAST(NULL AS STRING)"


def usable(*kinds: str) -> str:
    """Return the condition that a row is of these kinds and can be used."""
    return f"{_is_one_of(kinds)} AND NOT {is_bad(kinds)}"


# --- the rows of a node ---

NODES = f"""
WITH blocks AS (
    SELECT run, node, sequence >> {BLOCK_BITS} AS block, count(*) AS rows,
        count(CASE WHEN is_bad THEN 1 END) AS bad,
        bit_or(CAST(1 AS BIGINT) << CAST(sequence & {(1 << BLOCK_BITS) - 1} AS INT)) AS bits,
        min(sequence) AS first, max(sequence) AS last, min(good_time) AS earliest, max(good_time) AS latest,
        min_by(good_time, sequence) AS time_of_first, max_by(good_time, sequence) AS time_of_last,
        max(notifications) AS longest
    FROM (SELECT *, CASE WHEN NOT is_bad THEN time END AS good_time
        FROM (SELECT *, {is_bad()} AS is_bad FROM log) AS checked) AS timed
    GROUP BY run, node, sequence >> {BLOCK_BITS}
), seen AS (
    SELECT *, coalesce(bit_count(bits), rows) AS different,
        coalesce(time_of_first > earliest, false) OR coalesce(time_of_last < latest, false) OR coalesce(
            max(latest) OVER (PARTITION BY run, node ORDER BY block
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > earliest, false) AS went_back
    FROM blocks
)
SELECT run, node, CAST(sum(rows) AS BIGINT) AS rows, CAST(sum(bad) AS BIGINT) AS bad,
    CAST(sum(rows) - sum(different) AS BIGINT) AS repeated,
    CAST(coalesce(max(last) - min(first) + 1, sum(different)) - sum(different) AS BIGINT) AS missing,
    bool_or(went_back) AS went_back, max(longest) AS longest, max(last) AS last
FROM seen GROUP BY run, node
"""
"""State of each node's log: its rows, how many are invalid, repeated or missing, and its clock.

One bit per row is enough to know exactly what is missing or repeated, and blocks can be built where the rows
are, so that no row is moved. A clock that went back is detected if a row is earlier than the first row of its
block, or than a row of an earlier block. It may go unnoticed if the clock is right again within 32 rows.
"""


def breaks(dialect: Dialect, rows: str) -> str:
    """Return breaks in the log of a node, or of its clock: the row after each."""
    return f"""
SELECT run, node, sequence, time, missing, went_back_s FROM (
    SELECT run, node, sequence, time, sequence - lag(sequence) OVER one_by_one - 1 AS missing,
        {dialect.last_known("good_time")} OVER (PARTITION BY run, node ORDER BY sequence
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - good_time AS went_back_s
    FROM (SELECT *, CASE WHEN NOT (isnan(time) OR abs(time) = CAST('Infinity' AS DOUBLE)) THEN time END
            AS good_time
        FROM {rows} WHERE run IS NOT NULL AND node IS NOT NULL AND sequence IS NOT NULL) AS placed
    WINDOW one_by_one AS (PARTITION BY run, node ORDER BY sequence)
) AS compared WHERE missing > 0 OR went_back_s > 0
"""


NO_BREAKS = """
SELECT CAST(NULL AS STRING) AS run, CAST(NULL AS STRING) AS node, CAST(NULL AS BIGINT) AS sequence,
    CAST(NULL AS DOUBLE) AS time, CAST(NULL AS BIGINT) AS missing, CAST(NULL AS DOUBLE) AS went_back_s
WHERE false
"""


# --- who, and what they asked for ---

RARE_ROWS = f"SELECT {', '.join(RARE_COLUMNS)} FROM rows WHERE {usable(*RARE)}"


def subscriptions(dialect: Dialect, rare: str = "rare") -> str:
    """Return every subscription of every client, once for each time that it was issued.

    When a session ends, so do its subscriptions: what was published since the client went away is owed to
    nobody. A client may have begun another session elsewhere before the old one is over: subscriptions made
    after it went away belong to the new session. Rows before a subscription was first issued belong to a
    subscription unknown to the log, until a starting broker reports that it holds it: everything published
    since then is owed to it. Such a report adds nothing about subscriptions that the log knows.
    """
    place = dialect.struct(PLACE)
    edges = {
        "issued": "kind = 'subscribed' AND reason = 'issued'",
        "settled": f"kind = 'subscribed' AND reason IN ('settled', '{HELD}')",
        "ending": "kind = 'unsubscribed' AND reason = 'issued'",
        "ended": "kind = 'unsubscribed' AND reason = 'settled'",
    }
    found = ", ".join(f"min(CASE WHEN {fits} THEN {place} END) AS {edge}" for edge, fits in edges.items())
    places = ", ".join(f"{edge}.{part} AS {edge}_{part}" for edge in ("issued", "settled") for part in PLACE)
    places = places.replace("issued.time AS", f"coalesce(issued.time, {LONG_AGO!r}) AS", 1)
    ends = ", ".join(
        f"CASE WHEN {edge}.time IS NULL OR {edge}_at < {edge}.time THEN {edge}_at ELSE {edge}.time END"
        f" AS {edge}_time,"
        f" CASE WHEN {edge}_at IS NULL OR {edge}.time <= {edge}_at THEN {edge}.node END AS {edge}_node,"
        f" {edge}.sequence AS {edge}_sequence"
        for edge in ("ending", "ended")
    )
    return f"""
WITH steps AS (
    SELECT *, coalesce(max(CASE WHEN reason IS NULL OR reason <> 'session ended' THEN time END) OVER (
        PARTITION BY run, client ORDER BY time, sequence), time) AS went_at
    FROM {rare} WHERE kind = 'detached'
), changes AS (
    SELECT *, max(went_at) OVER (PARTITION BY run, client ORDER BY time, node, sequence) AS last_went_at
    FROM (SELECT run, client, filter, time, node, sequence, kind, reason, CAST(NULL AS DOUBLE) AS went_at
        FROM {rare} WHERE kind IN ('subscribed', 'unsubscribed') AND reason IN ('issued', 'settled', '{HELD}')
        UNION ALL SELECT run, client, filter, time, node, sequence, kind, reason, went_at
        FROM steps WHERE reason = 'session ended') AS together
), compared AS (
    SELECT *, lag(kind) OVER one_by_one AS kind_before, lag(time) OVER one_by_one AS time_before
    FROM changes WHERE kind <> 'detached'
    WINDOW one_by_one AS (PARTITION BY run, client, filter ORDER BY time, node, sequence)
), rounds AS (
    SELECT *, sum(CASE WHEN kind = 'subscribed' AND (reason = 'issued' OR reason = '{HELD}' AND
            (coalesce(kind_before, 'unsubscribed') = 'unsubscribed' OR last_went_at >= time_before))
            THEN 1 ELSE 0 END)
        OVER (PARTITION BY run, client, filter ORDER BY time, node, sequence) AS round
    FROM compared
), held AS (
    SELECT run, client, filter, round, min(time) AS begun_at, {found} FROM rounds WHERE round > 0
    GROUP BY run, client, filter, round
), ends AS (
    SELECT h.run, h.client, h.filter, h.round, min(s.time) AS ended_at, min(s.went_at) AS ending_at
    FROM held AS h JOIN steps AS s ON s.run = h.run AND s.client = h.client
        AND s.reason = 'session ended' AND s.went_at >= h.begun_at
    GROUP BY h.run, h.client, h.filter, h.round
)
SELECT h.run AS run, h.client AS client, h.filter AS filter, {places}, {ends}
FROM held AS h LEFT JOIN ends AS e
    ON e.run = h.run AND e.client = h.client AND e.filter = h.filter AND e.round = h.round
"""


TERMS = f"""
SELECT run, client, filter, reason, min(time) AS since FROM rare
WHERE kind = 'subscribed' AND reason IN ('{UNPROMISED}', '{NO_LOCAL}', '{SHARED}')
GROUP BY run, client, filter, reason
"""
"""Subscription rows that clients wrote."""

PUBLISHERS = """
SELECT run, publisher, incarnation, CAST(sum(notifications) AS BIGINT) AS published,
    CAST(sum(notifications * number + ((CAST(notifications AS BIGINT) * (notifications - 1)) >> 1)) AS BIGINT)
        AS sum,
    min(number) AS first, max(number + notifications - 1) AS last
FROM published GROUP BY run, publisher, incarnation
"""

WITNESSES = f"""
WITH lives AS (
    SELECT m.run AS run, m.client AS client, m.node AS node,
        max(CASE WHEN m.reason = 'left' AND m.sequence = n.last THEN 1 ELSE 0 END) AS is_closed
    FROM rare AS m JOIN nodes AS n ON n.run = m.run AND n.node = m.node
    WHERE m.kind = 'moved' AND m.node <> m.client GROUP BY m.run, m.client, m.node
), of_client AS (
    SELECT run, client, min(is_closed) AS is_closed FROM lives GROUP BY run, client
)
SELECT c.run AS run, c.client AS client, c.client_id AS client_id, CASE
    WHEN own.node IS NOT NULL THEN {WHOLE} WHEN l.is_closed IS NULL THEN {UNTOLD}
    WHEN l.is_closed = 1 THEN {AWAY} ELSE {TORN} END AS witness, e.client IS NOT NULL AS is_fleeting
FROM clients AS c LEFT JOIN (
    SELECT DISTINCT run, client FROM rare WHERE kind = 'detached' AND reason = 'session ended'
) AS e ON e.run = c.run AND e.client = c.client
LEFT JOIN nodes AS own ON own.run = c.run AND own.node = c.client
LEFT JOIN of_client AS l ON l.run = c.run AND l.client = c.client
"""
"""Clients, the kind of records they kept, and whether a session of theirs ever ended. Clients of the
simulator write under their own name.
"""

LIVES = f"""
SELECT run, node, CAST(row_number() OVER (PARTITION BY run, client ORDER BY node) AS BIGINT) AS life
FROM (SELECT DISTINCT run, client, node FROM rare WHERE kind = 'moved'
    AND substr(node, 1, length(client) + 1) = client || '{LIFE_MARK}') AS told
"""
"""Processes of each client, in order: each numbers its rows from 1."""


# --- what was owed, and what came ---

_STREAM = f"(CAST(client_id AS BIGINT) << {CLIENT_BITS}) + publisher_id"
_PLACE = f"-((CAST(incarnation_rank AS BIGINT) << {NUMBER_BITS}) + number)"
_OF_PUBLISHER = "p.run = r.run AND p.publisher = r.publisher AND p.incarnation = r.incarnation"
_OF_CLIENT = "c.run = r.run AND c.client = r.client"

NUMBERED = f"""
SELECT /*+ BROADCAST(p) */ r.run AS run, node, sequence, time, publisher_id, incarnation_rank, number,
    notifications, attributes
FROM published AS r JOIN publishers AS p ON {_OF_PUBLISHER} WHERE number > 0
"""
"""Publishes that must reach subscribers: only numbered ones."""


def owed(table: FilterTable, dialect: Dialect, clock_error_s: float) -> str:
    """Return `stream`, `place` and `notifications` of what a client must or may receive, and its standing."""
    kept = (
        "run", "node", "sequence", "time", "publisher_id", "incarnation_rank", "number", "notifications",
    )  # fmt: skip
    edges = [f"{edge}_{part}" for edge in EDGES for part in PLACE]
    pairs = pairs_sql(table, dialect, kept, ("client_id", "own_id", *edges), "readable", "wanted", "held")
    return f"""
SELECT {_STREAM} AS stream, {_PLACE} AS place, notifications, CAST(-standing AS BIGINT) AS mark
FROM (SELECT *, {standing(clock_error_s)} AS standing FROM ({pairs}) AS pairs) AS judged
WHERE standing IS NOT NULL
"""


def standing(clock_error_s: float, is_own: str = "coalesce(own_id = publisher_id, false)") -> str:
    """Return MUST, MAY or null: whether the subscription of a pair entitles its client to the notification.

    Two rows of one node are ordered by their sequence; rows of different nodes by their times, as far as
    clocks can be trusted. If the order of two rows is uncertain, both orders are considered possible. A
    subscription with "no local" gives no right to the client's own notifications.
    """

    def is_after(edge: str) -> str:
        by_time = f"time > {edge}_time + {clock_error_s!r}"
        return f"(CASE WHEN node = {edge}_node THEN sequence > {edge}_sequence ELSE {by_time} END)"

    def is_before(edge: str) -> str:
        by_time = f"time < {edge}_time - {clock_error_s!r}"
        return f"(CASE WHEN node = {edge}_node THEN sequence < {edge}_sequence ELSE {by_time} END)"

    must = f"{is_after('settled')} AND (ending_time IS NULL OR {is_before('ending')})"
    may = f"NOT {is_before('issued')} AND (ended_time IS NULL OR NOT {is_after('ended')})"
    return f"CASE WHEN coalesce({must}, false) AND NOT {is_own} THEN {MUST} WHEN {may} THEN {MAY} END"


STRANGERS = 64
"""Deliveries without a known client or publisher are distributed over this number of streams."""


def told(has_lives: bool, asks_brokers: bool) -> str:
    """Return deliveries: from clients' own records, or from brokers for clients without complete records.

    `came` is the position among the client's own rows, over all of its processes.
    """
    life = f"(coalesce(life, 0) << {NUMBER_BITS}) + " if has_lives else ""
    lives = "LEFT JOIN lives AS l ON l.run = r.run AND l.node = r.node" if has_lives else ""
    parts = [
        f"""SELECT /*+ BROADCAST(l) */ r.kind, r.run AS run, r.client, r.publisher, r.incarnation, r.number,
        r.notifications, r.time, r.broker, r.node AS node, r.sequence, r.published_at, r.reason,
        {life}r.sequence AS came FROM delivered AS r {lives} WHERE number > 0"""
    ]
    if asks_brokers:
        parts.append(
            f"""SELECT /*+ BROADCAST(c) */ r.kind, r.run AS run, r.client AS client, r.publisher,
            r.incarnation, r.number, r.notifications, r.time, r.broker, r.node, r.sequence,
            r.published_at, r.reason,
            r.sequence AS came
            FROM acknowledged AS r JOIN witnesses AS c ON {_OF_CLIENT} AND witness <> {WHOLE}"""
        )
    return " UNION ALL ".join(parts)


TOLD = f"""
SELECT /*+ BROADCAST(c), BROADCAST(p) */ r.kind AS kind, r.run AS run, r.client AS client,
    r.publisher AS publisher, r.incarnation AS incarnation, number, notifications, time, broker, node,
    sequence, published_at, reason, came, publisher_id, incarnation_rank, {_STREAM} AS stream
FROM told AS r LEFT JOIN clients AS c ON {_OF_CLIENT} LEFT JOIN publishers AS p ON {_OF_PUBLISHER}
"""
"""These deliveries, with the numbers of client and publisher if they are known."""

CAME = f"""
SELECT coalesce(stream, -1 - (sequence & {STRANGERS - 1})) AS stream,
    CASE WHEN stream IS NULL THEN sequence ELSE {_PLACE} END AS place, notifications,
    CASE WHEN kind = 'acknowledged' THEN -{ACKNOWLEDGED} WHEN reason IS NOT NULL THEN -{APART}
        ELSE came END AS mark
FROM known WHERE stream IS NOT NULL OR (kind = 'delivered' AND reason IS NULL)
"""

EXCUSED_ONES = f"""
SELECT {_STREAM} AS stream, {_PLACE} AS place, notifications,
    CAST(-{EXCUSED} AS BIGINT) AS mark
FROM rare AS r JOIN clients AS c ON {_OF_CLIENT} JOIN publishers AS p ON {_OF_PUBLISHER}
WHERE r.kind = 'dropped' AND number > 0 AND notifications IS NOT NULL
    AND reason IN ({", ".join(f"'{reason}'" for reason in EXCUSES)})
"""


def verdicts(
    sides: Sequence[str], dialect: Dialect, *, has_bursts: bool, has_lives: bool, asks_brokers: bool
) -> str:
    """Return every notification that needs a closer look, and (without a place) the rest of each stream.

    A verdict holds the standing of the notification (null: the client was not entitled to it), the number of
    `deliveries`, the `first` of them, and whether it was `overtaken`: a later one was delivered before it.
    `expected` and `delivered` count what the row represents.

    Notifications in transit when a session ends are owed to nobody, and no row shows how far they came. So a
    client whose sessions end has lost a notification only if its broker has the acknowledgement, or if one
    process of the client received earlier and later ones.

    Rows are moved once, to where their stream is judged: all later steps group by the stream.
    """
    of_entitled = "CASE WHEN standing IS NOT NULL THEN first END"
    before = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    # Spark takes the square of the rows for a frame that ends with the last one: the order is turned round.
    earlier = f"max({of_entitled}) OVER (PARTITION BY stream ORDER BY place DESC {before})"
    if not has_lives:
        earlier = "CAST(NULL AS BIGINT)"
    # What cannot be in a log is not counted for each of its notifications.
    acknowledged = f"bool_or(mark = -{ACKNOWLEDGED})" if asks_brokers else "false"
    excused = f"bool_or(mark = -{EXCUSED})" if "excused" in sides else "false"
    burst = ", notifications" if has_bursts else ""
    together = " UNION ALL ".join(f"SELECT stream, place, mark{burst} FROM {side}" for side in sides)
    if has_bursts:
        # Strangers have no place in an order: theirs are counted as they come.
        place = dialect.unnest_range("place - notifications + 1", "place")
        together = f"SELECT stream, {place} AS place, mark FROM ({together}) AS bursts"
    witnessed = "SELECT *, true AS is_certain, false AS is_over FROM ordered"
    if asks_brokers:
        witnessed = f"""
    SELECT /*+ BROADCAST(w) */ o.*, CASE witness WHEN {WHOLE} THEN true
            WHEN {AWAY} THEN acknowledged OR later IS NOT NULL ELSE false END AS is_certain,
        witness <> {WHOLE} AND is_fleeting AND is_missing
        AND NOT acknowledged AND coalesce(later >> {NUMBER_BITS} <> earlier >> {NUMBER_BITS}, true) AS is_over
    FROM ordered AS o LEFT JOIN witnesses AS w ON w.client_id = o.stream >> {CLIENT_BITS}"""
    tests = (
        "is_owed AND is_missing AND is_certain",
        "is_owed AND is_missing AND NOT acknowledged",
        "standing IS NULL AND (deliveries > 0 OR (acknowledged AND apart = 0))",
        "deliveries > 1 OR overtaken",
    )
    whens = " ".join(f"WHEN {test} THEN {number}" for number, test in enumerate(tests))
    names = " ".join(f"WHEN {number} THEN '{name}'" for number, name in enumerate(SUSPICIONS))
    return f"""
WITH sides AS (SELECT /*+ REPARTITION(stream) */ * FROM ({together}) AS together),
notifications AS (
    SELECT stream, place, max(CASE WHEN mark IN (-{MUST}, -{MAY}) THEN -mark END) AS standing,
        count(CASE WHEN mark >= 0 THEN 1 END) AS deliveries, min(CASE WHEN mark >= 0 THEN mark END) AS first,
        count(CASE WHEN mark = -{APART} THEN 1 END) AS apart,
        {acknowledged} AS acknowledged, {excused} AS excused
    FROM sides GROUP BY stream, place
), ordered AS (
    SELECT *, min({of_entitled}) OVER (PARTITION BY stream ORDER BY place {before}) AS later,
        {earlier} AS earlier, deliveries + apart = 0 AS is_missing
    FROM notifications
), witnessed AS ({witnessed}),
owing AS (
    SELECT *, coalesce(standing = {MUST} AND NOT excused AND NOT is_over, false) AS is_owed,
        coalesce(later < first AND standing IS NOT NULL, false) AS overtaken
    FROM witnessed
), judged AS (
    SELECT *, CASE {whens} END AS suspicion FROM owing
)
SELECT stream, CASE WHEN suspicion IS NOT NULL THEN place END AS place,
    CASE min(suspicion) {names} END AS suspicion,
    min(standing) AS standing, CAST(sum(deliveries) AS BIGINT) AS deliveries, min(first) AS first,
    bool_or(overtaken) AS overtaken,
    count(CASE WHEN is_owed THEN 1 END) AS expected,
    CAST(sum(CASE WHEN is_missing AND acknowledged THEN 1 ELSE deliveries + apart END) AS BIGINT) AS delivered
FROM judged GROUP BY stream, CASE WHEN suspicion IS NOT NULL THEN place END
"""


SUSPICIOUS_ARRIVALS = "SELECT count(*) AS came FROM verdicts WHERE suspicion IN ('again or late', 'unwanted')"
"""Suspicious cases to search for, in streams that have them."""


# --- from what looks wrong to the rows that are ---

DETAILS = {
    "kind": "STRING", "run": "STRING", "client": "STRING", "publisher": "STRING", "incarnation": "BIGINT",
    "number": "BIGINT", "time": "DOUBLE", "broker": "STRING", "node": "STRING", "sequence": "BIGINT",
    "published_at": "DOUBLE",
}  # fmt: skip
"""Attributes of the offending row: the delivered one, or for a missing delivery the publish."""
_SUSPECT = {**DETAILS, "publisher_id": "INT", "place": "BIGINT"}
_ALL_NULL = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in _SUSPECT.items())
NONE_FOUND = f"SELECT {_ALL_NULL} WHERE false"
"""No suspects, and no published notifications, with their columns."""


def _each_number(dialect: Dialect, has_bursts: bool) -> str:
    """The numbers of a row's notifications, one by one."""
    return dialect.unnest_range("number", "number + notifications - 1") if has_bursts else "number"


def published_ones(dialect: Dialect, has_bursts: bool) -> str:
    """Select the published notifications, one per row, that the table `asked_for` names."""
    number = _each_number(dialect, has_bursts)
    return f"""
SELECT e.* FROM (
    SELECT *, {_PLACE} AS place FROM (
        SELECT /*+ BROADCAST(p) */ r.run AS run, r.publisher AS publisher, r.incarnation AS incarnation, time,
            broker, node, sequence, published_at, publisher_id, incarnation_rank, {number} AS number
        FROM published AS r JOIN publishers AS p ON {_OF_PUBLISHER}) AS one_by_one
) AS e JOIN asked_for AS a ON a.publisher_id = e.publisher_id AND a.place = e.place
"""


_MISSING = "suspicion IN ('lost', 'unacknowledged')"
ASKED_FOR = f"""
SELECT stream & {(1 << CLIENT_BITS) - 1} AS publisher_id, place FROM verdicts WHERE {_MISSING}
UNION SELECT publisher_id, place FROM suspects WHERE kind = 'unexpected' AND place IS NOT NULL
"""
"""Missing notifications, and unwanted deliveries: were they ever published?"""

MISSING_ONES = f"""
SELECT s.suspicion AS kind, p.run AS run, c.client AS client, publisher,
    incarnation, number, time, broker, node, sequence, published_at
FROM verdicts AS s JOIN published_ones AS p
    ON p.publisher_id = s.stream & {(1 << CLIENT_BITS) - 1} AND p.place = s.place
JOIN clients AS c ON c.client_id = s.stream >> {CLIENT_BITS}
WHERE s.{_MISSING}
"""

SUSPICIOUS = f"""
SELECT stream, place, suspicion, deliveries, first, overtaken FROM verdicts
WHERE place IS NOT NULL AND NOT {_MISSING}
"""


def suspects(dialect: Dialect, has_bursts: bool) -> str:
    """Return the rows of repeated, late or unwanted deliveries."""
    return f"""
WITH one_by_one AS (
    SELECT kind AS told_by, run, client, publisher, incarnation, time, broker, node, sequence, published_at,
        came, stream, publisher_id, incarnation_rank, {_each_number(dialect, has_bursts)} AS number
    FROM known WHERE reason IS NULL
        AND (stream IS NULL OR stream IN (SELECT stream FROM suspicious))
), placed AS (SELECT *, {_PLACE} AS place FROM one_by_one),
compared AS (
    SELECT p.*, CASE
        WHEN p.stream IS NULL AND told_by = 'delivered' THEN 'unexpected'
        WHEN suspicion = 'unwanted' AND (told_by = 'delivered' OR deliveries = 0) THEN 'unexpected'
        WHEN told_by = 'delivered' AND suspicion IS NOT NULL AND came > first THEN 'duplicate'
        WHEN told_by = 'delivered' AND overtaken AND came = first THEN 'out of order' END AS kind
    FROM placed AS p LEFT JOIN suspicious AS s ON s.stream = p.stream AND s.place = p.place
)
SELECT kind, run, client, publisher, incarnation, number, time, broker, node, sequence, published_at,
    publisher_id, place
FROM compared WHERE kind IS NOT NULL
"""


UNWANTED_ONES = f"""
SELECT CASE WHEN f.kind = 'unexpected' AND real.place IS NULL THEN 'invented' ELSE f.kind END AS kind,
    f.run AS run, f.client AS client, f.publisher AS publisher, f.incarnation AS incarnation, number, time,
    broker, node, sequence, published_at
FROM suspects AS f LEFT JOIN (SELECT DISTINCT publisher_id, place FROM published_ones) AS real
    ON real.publisher_id = f.publisher_id AND real.place = f.place
LEFT JOIN publishers AS p ON p.run = f.run AND p.publisher = f.publisher AND p.incarnation = f.incarnation
WHERE f.kind <> 'unexpected' OR real.place IS NOT NULL OR number >= p.first OR NOT EXISTS (
    SELECT 1 FROM held AS h JOIN clients AS c ON c.client_id = h.client_id
    WHERE c.run = f.run AND c.client = f.client AND issued_time <= {LONG_AGO!r} AND settled_time IS NOT NULL)
"""
"""Separates unwanted notifications that were published from those that nobody published. Notifications
published before the log began may arrive at clients that had subscribed before.
"""


def visits(moves: str, turn: str = "sequence") -> str:
    """Return one row for each visit of a client; events at the same time are ordered by `turn`.

    `left_at` is the time at which the client left the previous broker (null if it did not report that),
    `attached_at` the time at which it went to this one, `until` the time at which it left this one (null: it
    is still there). `handoff` counts the visits that began with a handoff from another broker; `is_handoff`
    marks them.
    """
    return f"""
SELECT run, client, broker, came_from, left_at, attached_at, until, is_handoff, handoff FROM (
    SELECT *, lead(time) OVER steps AS until,
        CASE WHEN lag(is_left) OVER steps THEN lag(time) OVER steps END AS left_at,
        sum(CAST(is_handoff AS INT)) OVER steps AS handoff, time AS attached_at
    FROM (SELECT run, client, broker, {turn} AS turn, time, coalesce(reason = '{LEFT}', false) AS is_left,
            CASE WHEN reason <> '{LEFT}' THEN reason END AS came_from,
            coalesce(reason <> '{LEFT}' AND reason <> broker, false) AS is_handoff
        FROM {moves}) AS moved
    WINDOW steps AS (PARTITION BY run, client ORDER BY time, turn)
) AS stepped WHERE NOT is_left
"""


FINDINGS = f"""
WITH details AS ({MISSING_ONES} UNION ALL {UNWANTED_ONES}),
reasons AS (
    SELECT run, client, publisher, incarnation, number, min(reason) AS dropped_because
    FROM (SELECT run, client, publisher, incarnation, reason,
            {DUCKDB.unnest_range("number", "number + notifications - 1")} AS number FROM rare
        WHERE kind = 'dropped' AND notifications IS NOT NULL AND number IS NOT NULL) AS given_up
    GROUP BY run, client, publisher, incarnation, number
)
SELECT {", ".join(f"f.{name} AS {name}" for name in DETAILS)}, CAST(v.handoff AS BIGINT) AS handoff,
    coalesce(f.time < v.attached_at, false) AS was_away, dropped_because
FROM details AS f LEFT JOIN visits AS v ON v.run = f.run AND v.client = f.client
    AND f.time >= coalesce(v.left_at, v.attached_at) AND (v.until IS NULL OR f.time < v.until)
LEFT JOIN reasons AS d ON d.run = f.run AND d.client = f.client AND d.publisher = f.publisher
    AND d.incarnation = f.incarnation AND d.number = f.number
"""
"""One row for each wrong delivery or loss.

It names the client's handoff that it belongs to, whether the client was away, and a broker's excuse.
"""


# --- tables ---


def _counted(key: Sequence[str]) -> str:
    counts = ", ".join(
        f"count(CASE WHEN kind = '{kind}' THEN 1 END) AS {name}" for kind, name in KINDS_OF_FINDINGS.items()
    )
    return f"SELECT {', '.join(key)}, {counts} FROM findings GROUP BY {', '.join(key)}"


def _zeroed(names: Iterable[str], table: str) -> str:
    return ", ".join(f"coalesce({table}.{name}, 0) AS {name}" for name in names)


STREAMS = f"""
WITH sums AS (
    SELECT stream, CAST(sum(expected) AS BIGINT) AS expected, CAST(sum(delivered) AS BIGINT) AS delivered
    FROM verdicts WHERE stream >= 0 GROUP BY stream
), named AS (
    SELECT /*+ BROADCAST(c), BROADCAST(p) */ c.run AS run, client, publisher, expected, delivered
    FROM sums AS s JOIN clients AS c ON c.client_id = s.stream >> {CLIENT_BITS}
    JOIN (SELECT DISTINCT publisher, publisher_id FROM publishers) AS p
        ON p.publisher_id = s.stream & {(1 << CLIENT_BITS) - 1}
), faults AS ({_counted((*CLIENT, "publisher"))})
SELECT coalesce(n.run, f.run) AS run, coalesce(n.client, f.client) AS client,
    coalesce(n.publisher, f.publisher) AS publisher, coalesce(expected, 0) AS expected,
    coalesce(delivered, coalesce(f.unexpected, 0) + coalesce(f.invented, 0)) AS delivered,
    {_zeroed(KINDS_OF_FINDINGS.values(), "f")}
FROM named AS n FULL JOIN faults AS f
    ON f.run = n.run AND f.client = n.client AND f.publisher = n.publisher
"""
"""What each client was owed, received and missed from each publisher. Unknown clients and publishers have
findings only.
"""


def sums(*key: str) -> str:
    totals = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in COUNTS)
    columns = ", ".join(key)
    return f"SELECT {columns}, {totals} FROM streams GROUP BY {columns} ORDER BY {columns}"


HANDOFFS = f"""
WITH faults AS ({_counted((*CLIENT, "handoff"))})
SELECT v.run AS run, v.client AS client, broker, came_from, left_at, attached_at, until,
    CAST(v.handoff AS BIGINT) AS handoff, {_zeroed(KINDS_OF_FINDINGS.values(), "f")}
FROM visits AS v LEFT JOIN faults AS f ON f.run = v.run AND f.client = v.client AND f.handoff = v.handoff
WHERE is_handoff ORDER BY v.run, v.client, v.handoff
"""
"""Every handoff, and what went wrong since its client left the previous broker."""

CLIENTS = f"""
SELECT s.*, CASE WHEN w.witness IN ({TORN}, {UNTOLD}) THEN 'brokers' ELSE 'records' END AS judged_by
FROM ({sums(*CLIENT)}) AS s LEFT JOIN witnesses AS w ON w.run = s.run AND w.client = s.client
ORDER BY s.run, s.client
"""
"""What each client was owed, received and missed, and which records show it."""
