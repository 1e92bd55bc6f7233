"""The figures of a run as plain data."""

from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.lab.summary import percentile, write_json


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.95, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), ([1.0, 2.0, 3.0], 0.5, 2.0),
     (list(range(1, 101)), 0.95, 95), ([1.0, 2.0], 0.0, 1.0)],
)  # fmt: skip
def test_a_percentile_is_a_value_that_occurred(
    values: list[float], share: float, expected: float | None
) -> None:
    assert percentile(values, share) == expected


def test_json_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, None]})
    assert (tmp_path / "a.json").read_text() == '{\n  "b": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "nan.json", {"b": float("nan")})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(InputError, match=r"missing/a\.json: cannot be written \(No such file"):
        write_json(tmp_path / "missing" / "a.json", {})
