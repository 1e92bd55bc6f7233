"""Protocols of others: named by a variable, declared by a package, or wrong."""

from pathlib import Path

import pytest

from roamcast.cli.extras import missing_extra
from roamcast.errors import InputError
from roamcast.mobility import PROTOCOLS, MobilityProtocol
from roamcast.plugins import VARIABLE, load_protocols


@pytest.fixture(autouse=True)
def protocols_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(PROTOCOLS):
        monkeypatch.setitem(PROTOCOLS, name, PROTOCOLS[name])
    monkeypatch.delitem(PROTOCOLS, "carry", raising=False)


def test_a_file_named_by_the_variable_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "of_another_name.py"
    copy.write_text(
        "from roamcast.mobility import MobilityProtocol, register\n"
        "class Mine(MobilityProtocol):\n    name = 'mine'\n"
        "register(Mine)\n"
    )
    monkeypatch.setenv(VARIABLE, f"{copy}, json")
    load_protocols()
    try:
        assert issubclass(PROTOCOLS["mine"], MobilityProtocol)
    finally:
        del PROTOCOLS["mine"]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("there-is-none.py", "there is no file"),
        ("no.such.module", "No module named"),
        ("broken.py", "invalid"),
    ],
)
def test_what_cannot_be_loaded_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(InputError, match=said) as caught:
        load_protocols()
    assert str(caught.value).startswith(f"{VARIABLE}: {named}: cannot be loaded")


def test_a_missing_package_is_answered_with_its_extra() -> None:
    assert "'roamcast[lab]'" in missing_extra("networkx.algorithms", ["sim", "run"])
    assert "'roamcast[events]'" in missing_extra("pyarrow", ["explain"])
    assert "'roamcast[audit]'" in missing_extra("pyarrow", ["pipeline", "audit"])
    assert "'roamcast[pipeline]'" in missing_extra("pyarrow", ["pipeline", "metrics"])
    assert missing_extra("roamcast.broken", ["sim"]) == ""
