"""Results change places in one piece, or not at all."""

from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.pipeline import output
from roamcast.pipeline.output import replace_part, replace_parts, unfinished


def make(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "part").write_text(text)
    return folder


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(output, "_exchange", lambda one, other: False)
    place = tmp_path / "place"
    replace_part(make(tmp_path / "new", "1"), place)
    (place / "more").write_text("of the first")
    replace_part(make(tmp_path / "new", "2"), place)
    assert [(file.name, file.read_text()) for file in place.iterdir()] == [("part", "2")]
    assert list(tmp_path.iterdir()) == [place]


def test_parts_are_replaced_and_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out / "of_run=1", "old")
    make(out / "of_run=2", "old")
    make(tmp_path / "made" / "of_run=2", "new")
    (tmp_path / "made" / "_SUCCESS").touch()
    assert replace_parts(tmp_path / "made", out) == ["of_run=2"]
    texts = {folder.name: (folder / "part").read_text() for folder in out.iterdir()}
    assert texts == {"of_run=1": "old", "of_run=2": "new"}


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail() -> None:
        with unfinished(out) as made:
            make(made / "part", "half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(out.iterdir()) == []


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = "file: cannot be written \\(not a directory\\)"
    with pytest.raises(InputError, match=problem), unfinished(tmp_path / "file"):
        pass
