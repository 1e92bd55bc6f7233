"""The selector language: what it means, how it is written back, and what is refused."""

import copy
import pickle
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from tests.filters.naive_filters import Condition, conditions, notifications, text_of, value_of

from roamcast.errors import InputError
from roamcast.filters.filter import ALL, NONE
from roamcast.filters.selector import parse, parse_subscription

quick = settings(derandomize=True, deadline=None, max_examples=1_000, database=None)


@quick
@given(conditions, notifications)
def test_matches_as_the_definition_says(condition: Condition, notification: dict[str, Any]) -> None:
    assert parse(text_of(condition)).matches(notification) is (value_of(condition, notification) is True)


@quick
@given(conditions)
def test_text_reads_back_as_the_same_object(condition: Condition) -> None:
    filter = parse(text_of(condition))
    assert parse(filter.text) is filter
    assert str(filter) == filter.text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("TRUE", "TRUE"),
        ("not false", "TRUE"),
        ("x=1.0", "x = 1"),
        ("x = -0.0", "x = 0"),
        ("x = 1E3", "x = 1000"),
        ("x = .5", "x = 0.5"),
        ("5 < x", "x > 5"),
        ("x != 5", "x <> 5"),
        ("b and a", "a = TRUE AND b = TRUE"),
        ("NOT (a OR b > 1)", "a = FALSE AND b <= 1"),
        ("x In (3, 1, 2, 1)", "x IN (1, 2, 3)"),
        ("x IN ('only')", "x = 'only'"),
        ("NOT x IN (1, 2)", "x NOT IN (1, 2)"),
        ("x LIKE '%%_'", "x LIKE '_%'"),
        ("x LIKE 'plain'", "x = 'plain'"),
        ("x LIKE 'a!%%' ESCAPE '!'", r"x LIKE 'a\%%' ESCAPE '\'"),
        ("topic matches 'a/b'", "topic = 'a/b'"),
        ("NOT topic MATCHES 'a/+'", "topic NOT MATCHES 'a/+'"),
        ("\"x\" = 'it''s'", "x = 'it''s'"),
        ('"and" IS NULL', '"and" IS NULL'),
        ('"a ""b""" IS NOT NULL', '"a ""b""" IS NOT NULL'),
        ("(a AND (b AND c)) OR a AND c AND b", "a = TRUE AND b = TRUE AND c = TRUE"),
        ("(a OR b) AND c", "(a = TRUE OR b = TRUE) AND c = TRUE"),
        ("$sys.load >= 1", "$sys.load >= 1"),
        ("größe > 2", "größe > 2"),
        ("location IN my.location", "location IN myloc"),
        ("x = myloc", "x IN myloc"),
        ("NOT x <> my.channel", "x IN my.channel"),
        ("x WITHIN 0 OF myloc", "x IN myloc"),
        ("x within 2.0 of myloc", "x WITHIN 2 OF myloc"),
        ("NOT x WITHIN 2 OF myloc", "x NOT WITHIN 2 OF myloc"),
        ("NOT x NOT IN myloc", "x IN myloc"),
        ("my.budget > price", "price < my.budget"),
        ("NOT price <= my.budget", "price > my.budget"),
        ("x IN myloc('it''s')", "x IN myloc('it''s')"),
        ('"my.budget" > 1 AND "myloc"', '"my.budget" > 1 AND "myloc" = TRUE'),
        ('"of" = 1', '"of" = 1'),
        ("x = -9223372036854775808", "x = -9223372036854775808"),
        ("x = 9223372036854775808.0", "x = 9.223372036854776e+18"),
    ],
)
def test_one_spelling_for_each_meaning(text: str, canonical: str) -> None:
    assert parse(text).text == canonical
    assert parse(canonical) is parse(text)


def test_constants_and_copies_are_the_same_objects() -> None:
    assert parse("TRUE") is ALL
    assert parse("FALSE") is NONE
    filter = parse("x > 5 AND y = 'z'")
    assert pickle.loads(pickle.dumps(filter)) is filter
    assert copy.deepcopy(filter) is filter
    with pytest.raises(AttributeError):
        filter.text = "x > 6"


LITERAL = "a number or a string in single quotes or FALSE or TRUE"
VALUE = "a number or a string in single quotes or myloc or my.something or FALSE or TRUE"
CONDITION = (
    "'(' or a number or a string in single quotes or an attribute name or myloc or my.something"
    " or FALSE or NOT or TRUE"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"selector, position 1: the selector ends here, expected {CONDITION}"),
        ("a =", f"selector, position 4: the selector ends here, expected {VALUE}"),
        ("a = AND", f"selector, position 5: found 'AND', expected {VALUE}"),
        ("a = 'x", "selector, position 5: the quote is not closed, expected another '"),
        ('"a = 1', 'selector, position 1: the quote is not closed, expected another "'),
        ("a = 1 b", "selector, position 7: found 'b', expected the end or AND or OR"),
        ("(a = 1", "selector, position 7: the selector ends here, expected ')'"),
        (
            "a\n~ 1",
            "selector, position 3: found '~', expected a comparison (= <> < <= > >=) or the end or"
            " AND or BETWEEN or IN or INSIDE or IS or LIKE or MATCHES or NOT or OR or WITHIN",
        ),
        ("a LIKE 5", "selector, position 8: found '5', expected a string in single quotes"),
        ("a IN ()", f"selector, position 7: found ')', expected {LITERAL}"),
        ("a IN b", "selector, position 6: found 'b', expected '(' or myloc or my.something or CELL"),
        ("a WITHIN -1 OF myloc", "selector, position 10: found '-1', expected 0 or more"),
        ("a WITHIN 2", "selector, position 11: the selector ends here, expected M or KM or OF"),
        ("a < TRUE", "selector, position 3: found '<', expected = or <> (booleans have no order)"),
        ("a BETWEEN TRUE AND FALSE", "selector, position 11: found a boolean, expected a number or a string"),
        (
            "a BETWEEN 1 AND 'x'",
            "selector, position 17: found a string, expected a number like the first value",
        ),
        ("a IN (1, 'x')", "selector, position 10: found a string, expected a number like the first value"),
        (
            "a LIKE 'x!' ESCAPE '!'",
            "selector, position 8: in LIKE pattern 'x!' the escape character '!'"
            " must be followed by '%', '_' or itself",
        ),
        ("a LIKE 'x' ESCAPE 'ab'", "selector, position 8: ESCAPE needs exactly one character, got 'ab'"),
        (
            "a MATCHES 'b/c#'",
            "selector, position 11: topic filter 'b/c#', position 4: '#' must be the whole last level",
        ),
        (
            "a MATCHES '#/b'",
            "selector, position 11: topic filter '#/b', position 1: '#' must be the whole last level",
        ),
        (
            "a MATCHES 'b+/c'",
            "selector, position 11: topic filter 'b+/c', position 2: '+' must be a whole level",
        ),
        ("a MATCHES ''", "selector, position 11: topic filter '' is empty: expected at least one character"),
        (
            "a = 9223372036854775808",
            "selector, position 5: the integer 9223372036854775808 is out of range,"
            " expected -9223372036854775808 to 9223372036854775807",
        ),
        (
            "a = 1e999",
            "selector, position 5: the number 1e999 is too large, expected at most 1.7976931348623157e308",
        ),
        (
            "a = " + "9" * 5_000,
            f"selector, position 5: the integer {'9' * 37}... is out of range,"
            " expected -9223372036854775808 to 9223372036854775807",
        ),
        ("(" * 65 + "a" + ")" * 65, "selector, position 1: nested too deeply, expected at most 64 levels"),
        ("x" * 8_193, "selector is too long: 8193 characters, expected at most 8192"),
        (
            " OR ".join(f"x{n} = 1" for n in range(513)),
            "selector has too many conditions: expected at most 512",
        ),
        (
            " AND ".join(f"{'x' * 8}{n}" for n in range(480)),
            "selector is too long: 10925 characters when written out, expected at most 8192",
        ),
    ],
)
def test_errors_say_where_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert str(caught.value) == message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "NOT " * 1_500 + "(" + " OR ".join(f"x{n} = 1" for n in range(200)) + ")",
        "(" * 4_000,
        "NOT (" * 1_600,
        "x IN (" + "1, " * 2_700,
        "?" * 8_000,
        "x LIKE '" + "%a" * 4_000 + "'",
        "x MATCHES '" + "+/" * 4_000 + "#'",
        "'" * 8_191,
    ],
)
def test_no_text_exhausts_the_parser(text: str) -> None:
    started = time.perf_counter()
    with suppress(InputError):
        filter = parse(text)
        filter.matches({"x": "a/" * 5_000 + "b"})
        filter.covers(parse("x LIKE '%a%b'"))
        filter.overlaps(parse("x MATCHES '+/b/#'"))
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a/+/b", "topic MATCHES 'a/+/b'"),
        ("a/b", "topic = 'a/b'"),
        ("$sys/#", "topic MATCHES '$sys/#'"),
        ("a/+?speed>5", "speed > 5 AND topic MATCHES 'a/+'"),
        ("a?x=1&y=two words&z!=true", "topic = 'a' AND x = 1 AND y = 'two words' AND z = FALSE"),
        ("a?x='1'&y='&='", "topic = 'a' AND x = '1' AND y = '&='"),
        ("a?x<=-1.5&x<>0", "topic = 'a' AND x <= -1.5 AND x <> 0"),
        ("a?location=myloc&cost<3", "cost < 3 AND location IN myloc AND topic = 'a'"),
        ("a?location=myloc~2", "location WITHIN 2 OF myloc AND topic = 'a'"),
        ("a?location!=myloc~2", "location NOT WITHIN 2 OF myloc AND topic = 'a'"),
        ("a?price<=my.budget&x='myloc'", "price <= my.budget AND topic = 'a' AND x = 'myloc'"),
        ("a?price<my.budget~2", "price < 'my.budget~2' AND topic = 'a'"),
        # A question mark that does not introduce conditions is part of the topic.
        ("a?b", "topic = 'a?b'"),
        ("a?", "topic = 'a?'"),
        ("a?x=", "topic = 'a?x='"),
        ("a?x=1&", "topic = 'a?x=1&'"),
        ("?x=1", "topic = '?x=1'"),
        ("a?x>true", "topic = 'a?x>true'"),
        ("a?x=99999999999999999999", "topic = 'a?x=99999999999999999999'"),
        # The last one that does, counts.
        ("a?b=1?c=2", "c = 2 AND topic = 'a?b=1'"),
        ("a?b=what?", "b = 'what?' AND topic = 'a'"),
    ],
)
def test_subscriptions_in_short_form(text: str, canonical: str) -> None:
    assert parse_subscription(text).text == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "topic filter '' is empty: expected at least one character"),
        ("a/#/b", "topic filter 'a/#/b', position 3: '#' must be the whole last level"),
        ("a/b+?x=1", "topic filter 'a/b+', position 4: '+' must be a whole level"),
        ("a\0", "topic filter 'a\\x00', position 2: a null character is not allowed"),
        ("a" * 8_193, "subscription is too long: 8193 characters, expected at most 8192"),
    ],
)
def test_bad_subscriptions_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_subscription(text)
    assert str(caught.value) == message


def test_topic_rules() -> None:
    def matches(pattern: str, topic: str) -> bool:
        return parse_subscription(pattern).matches({"topic": topic})

    assert matches("a/#", "a")
    assert matches("a/#", "a/b/c")
    assert not matches("a/#", "ab")
    assert matches("a/+", "a/")
    assert not matches("a/+", "a")
    assert matches("#", "a/b")
    assert not matches("#", "$sys/x")
    assert not matches("+/x", "$sys/x")
    assert matches("$sys/+", "$sys/x")
    assert matches("+/+", "/x")
