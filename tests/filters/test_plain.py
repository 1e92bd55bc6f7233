"""The short way of reading gives what the grammar gives, or leaves it to the grammar."""

from __future__ import annotations

import random

import pytest

from roamcast.filters.expression import And, Expression, between, comparison, conjunction
from roamcast.filters.grammar import _parser
from roamcast.filters.plain import read_plain


def parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.children if isinstance(expression, And) else (expression,)


def drawn(rng: random.Random) -> Expression:
    name = rng.choice(("a", "b_1", "topic", "Zz"))
    value = rng.choice((rng.randint(-(10**9), 10**9), rng.uniform(-5, 5), "x y", "a AND b", "", "é"))
    if not isinstance(value, str) and rng.random() < 0.3:
        return between(name, value, value + 1)
    return comparison(name, rng.choice(("=", "<>", "<", "<=", ">", ">=")), value)


def test_it_reads_what_filters_print_as_the_grammar_does() -> None:
    rng = random.Random(1)
    read = 0
    for _ in range(200):
        text = conjunction(drawn(rng) for _ in range(rng.randint(1, 6))).text()
        found = read_plain(text)
        if found is not None:
            read += 1
            assert parts(found) == parts(_parser.parse(text))  # type: ignore[arg-type]
    assert read > 150


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a",
            "a = 1 AND ",
            "a = 1 OR b = 2",
            "b = 2 AND a = 1",
            "a  = 1",
            "a = 5.0",
            "a = -0",
            "a = 007",
        ),
        *(
            "in = 1",
            "myloc = 1",
            "a = 'it''s'",
            "a = 9223372036854775808",
            "a = 1e300",
            "a = TRUE",
            "a IN (1, 2)",
        ),
        *("a BETWEEN 1 AND", "a BETWEEN 'a' AND 'b'", "a = 1 AND a = 1", "a MATCHES 'x/#'", "a <> myloc"),
    ],
)
def test_it_leaves_the_rest_to_the_grammar(text: str) -> None:
    assert read_plain(text) is None
