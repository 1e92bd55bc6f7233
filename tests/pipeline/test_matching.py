"""Spark's evaluation of filters, against a plain reading of the language."""

import itertools
import re
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.filters.naive_filters import Condition, conditions, notifications, text_of, value_of

from roamcast.filters.selector import parse
from roamcast.pipeline import conditions as conditions_module
from roamcast.pipeline.conditions import MISSING, Allowed, boxes_of, encode, java_quoted
from roamcast.pipeline.engines import DUCKDB, DuckEngine
from roamcast.pipeline.matching import filter_table, pairs_sql
from roamcast.pipeline.spark_engine import matching_pairs, with_values
from roamcast.protocol.notification import encode_attributes

pytestmark = pytest.mark.xdist_group("spark")

NUMBERS = [
    *(float("-inf"), -1e300, -(2**63), -(2**53) - 1, -1.5, -1, -5e-324, 0, 5e-324, 0.5, 1, 2**53, 2**53 + 1),
    *(2**63 - 1025, 2**63 - 1024, 2**63 - 1, float(2**63), 2**64 - 1, 1e300, float("inf")),
]


def test_bytes_sort_as_values_do() -> None:
    for ordered in (NUMBERS, ["", "\0", "a", "a\0", "ab", "b", "\uffff", "\U00010000"], [False, True]):
        encoded = [encode(value) for value in ordered]
        assert encoded == sorted(encoded)
        assert len(set(encoded)) == len(encoded)
    assert encode(1) == encode(1.0)
    assert encode(0.0) == encode(-0.0)
    assert len({encode(True), encode(1), encode("1"), encode(float("nan"))}) == 4


def matched(spark: SparkSession, texts: list[str], attributes: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """Pairs of a notification's number and a filter's text."""
    encoded = [encode_attributes(one) for one in attributes]
    rows = pa.table({"run": ["r"] * len(encoded), "number": range(len(encoded)), "attributes": encoded})
    # A subscription of another run, which must not matter.
    held = pa.table({"run": ["r"] * len(texts) + ["s"], "filter": [*texts, "TRUE"]})
    table = filter_table([*texts, "TRUE"])
    valued = with_values(spark.createDataFrame(rows), table.values)
    pairs = matching_pairs(spark, valued, spark.createDataFrame(held), table)
    return {(row.number, row.filter) for row in pairs.select("number", "filter").collect()}


def matched_by_duckdb(texts: list[str], attributes: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """The same by the embedded engine."""
    encoded = [encode_attributes(one) for one in attributes]
    rows = pa.table({"run": ["r"] * len(encoded), "number": range(len(encoded)), "attributes": encoded})
    table = filter_table([*texts, "TRUE"])
    with duckdb.connect() as connection:
        engine = DuckEngine(connection)
        engine.register("rows", rows)
        engine.register("held", pa.table({"run": ["r"] * len(texts) + ["s"], "filter": [*texts, "TRUE"]}))
        engine.register("boxes", table.boxes)
        engine.keep("wanted", "SELECT * FROM boxes JOIN held USING (filter)")
        engine.define_values("valued", "SELECT * FROM rows", table.values)
        query = pairs_sql(table, DUCKDB, ("number",), ("filter",), "valued", "wanted", "held")
        return {(row["number"], row["filter"]) for row in engine.fetch(query).to_pylist()}


def wanted(by_text: dict[str, Condition], attributes: list[dict[str, Any]]) -> set[tuple[int, str]]:
    return {
        (number, text)
        for (number, one), (text, condition) in itertools.product(enumerate(attributes), by_text.items())
        if value_of(condition, one) is True
    }


def texts_of(conditions: list[Condition]) -> dict[str, Condition]:
    return {parse(text_of(condition)).text: condition for condition in conditions}


quick = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
many_notifications = st.lists(notifications, min_size=20, max_size=40)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(conditions, min_size=20, max_size=40), many_notifications, st.sampled_from((0, 64)))
def test_duckdb_matches_what_the_language_says(
    conditions: list[Condition], attributes: list[dict[str, Any]], boxes_max: int
) -> None:
    by_text = texts_of(conditions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditions_module, "BOXES_MAX", boxes_max)
        found = matched_by_duckdb(list(by_text), attributes)
    assert {pair for pair in found if pair[1] in by_text} == wanted(by_text, attributes)


def test_positions_in_regions() -> None:
    near = parse("place WITHIN 2 KM OF (43.26, -2.93)").text
    far = parse("place NOT WITHIN 2 KM OF (43.26, -2.93)").text
    told = ["43.263,-2.935", "40.4,-3.7", "nowhere", 43.2]
    places: list[dict[str, Any]] = [*({"place": one} for one in told), {"other": 1}]
    assert matched_by_duckdb([near, far], places) == {(0, near), (1, far)}


@quick
@given(st.lists(conditions, min_size=50, max_size=80), many_notifications)
def test_spark_matches_what_the_language_says(
    spark: SparkSession, conditions: list[Condition], attributes: list[dict[str, Any]]
) -> None:
    by_text = texts_of(conditions)
    found = matched(spark, list(by_text), attributes)
    # TRUE is always among the filters, as another run's.
    assert {pair for pair in found if pair[1] in by_text} == wanted(by_text, attributes)


@quick
@given(st.lists(conditions, min_size=5, max_size=8), many_notifications)
def test_so_do_filters_of_too_many_boxes(
    spark: SparkSession, conditions: list[Condition], attributes: list[dict[str, Any]]
) -> None:
    by_text = texts_of(conditions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditions_module, "BOXES_MAX", 0)
        found = matched(spark, list(by_text), attributes)
    assert {pair for pair in found if pair[1] in by_text} == wanted(by_text, attributes)


@settings(max_examples=500, deadline=None)
@given(conditions, notifications)
def test_boxes_hold_what_the_language_says(condition: Condition, attributes: dict[str, Any]) -> None:
    """The boxes alone, looked into by Python: without Spark there is time for many more filters."""
    boxes = boxes_of(parse(text_of(condition)).expression)
    if boxes is not None:
        inside = any(
            all(is_allowed(allowed, attributes.get(name)) for name, allowed in box.items()) for box in boxes
        )
        assert inside == (value_of(condition, attributes) is True)


def is_allowed(allowed: Allowed, value: Any) -> bool:
    encoded = MISSING if value is None else encode(value)
    return any(low <= encoded < high for low, high in allowed.intervals) and all(
        (re.fullmatch(pattern.regex, value, re.DOTALL) is not None) != pattern.negative
        for pattern in allowed.patterns
    )


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("a IN (1, 2, 3) AND b IN ('x', 'y')", 1),
        ("a = 1 OR a = 2 OR a > 7", 1),
        ("a = 1 OR b = 2", 2),
        ("a < 3 AND a > 5", 0),
        ("a BETWEEN 1 AND 3 AND NOT a = 2", 1),
        ("a <> TRUE AND a <> FALSE", 0),
        ("(a = 1 OR b = 1) AND (c = 1 OR d = 1)", 4),
        (" AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(7)), None),
    ],
)
def test_boxes_stay_few(text: str, boxes: int | None) -> None:
    found = boxes_of(parse(text).expression)
    assert (None if found is None else len(found)) == boxes


def test_equalities_and_short_lists_are_keys() -> None:
    table = filter_table(["a = 1 AND x = 'p'", "a IN (1, 2)", "x = 'q' AND y > 3", "y < 0"])
    assert table.names == ("a", "x", "y")
    assert table.keys == (0, 1)
    assert table.has_keyless
    assert table.boxes.num_rows == 5, "one for each value of a list"


def test_what_cannot_be_read_is_said(spark: SparkSession) -> None:
    rows = pa.table({"attributes": [encode_attributes({"a": 1}), b"\xc1", b"", b"\x81\xa1a\xc0", None]})
    valued = with_values(spark.createDataFrame(rows), ["a"]).collect()
    assert [row.readable for row in valued] == [True, False, False, False, False]
    assert [row.value0 for row in valued] == [encode(1), b"", b"", b"", b""]


def test_a_filter_on_the_clients_own_state_may_match_anything_there(spark: SparkSession) -> None:
    text = parse("place IN myloc AND kind = 'bus'").text
    places = [{"place": "x", "kind": "bus"}, {"place": "y", "kind": "tram"}, {"kind": "bus"}]
    assert matched(spark, [text], places) >= {(0, text)}
    assert not {(1, text), (2, text)} & matched(spark, [text], places)


@given(st.text(), st.text(alphabet="a.*$\\-[ ]+/\n#"))
def test_quoted_text_fits_itself_alone(text: str, other: str) -> None:
    assert re.fullmatch(java_quoted(text), text)
    assert re.fullmatch(java_quoted(other), other)
    assert (re.fullmatch(java_quoted(other), text) is not None) == (other == text)
