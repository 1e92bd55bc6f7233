"""A broker with plain flags starts without the library of the other commands, and means the same by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roamcast.cli.starting import plain_flags


def test_plain_flags_are_read() -> None:
    words = (
        "--id a --listen 127.0.0.1:1883 --listen=ws://127.0.0.1:8083 --peer b --config site.toml --set a.b=c"
    )
    assert plain_flags(words.split()) == {
        "id": "a",
        "listen": ["127.0.0.1:1883", "ws://127.0.0.1:8083"],
        "peer": ["b"],
        "config": Path("site.toml"),
        "set_": ["a.b=c"],
    }
    assert plain_flags([]) == {}


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "-h",
        "--check",
        "--print-config",
        "status",
        "--id",
        "--id --data x",
        "--id=",
        "--port 1",
        "drain a",
    ],
)
def test_everything_else_is_left_to_the_other_parser(words: str) -> None:
    assert plain_flags(words.split()) is None
