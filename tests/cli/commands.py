"""Commands run within this process: what they print as JSON, and the one line of a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roamcast.cli import build_app, run


class Command:
    """A command of `roamcast` by its words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def json(self, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
        """The one object that it prints."""
        assert run(build_app(), [*self._words, *arguments, "--json"]) == code
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    def refused(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """The one line with which arguments are refused, beside the titles of progress."""
        assert run(build_app(), [*self._words, *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        (line,) = [line for line in output.err.splitlines() if not line.endswith(" ...")]
        return line.removeprefix("roamcast: ")
