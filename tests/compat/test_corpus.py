"""What every released build left behind is opened by this one, and recorded conversations are answered."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.compat.archives import unpack
from tests.compat.conversations import Turn, answer, check_says_as_before, said_by
from tests.compat.handshakes import IDS, Role, Step, play
from tests.compat.make import CONVERSATION_FILE, HANDSHAKE_FILE, HERE, WORLDS, folder_of
from tests.compat.worlds import PROTOCOLS, check_opened, new_world

from roamcast import __version__
from roamcast.broker.inputs import REPLAY
from roamcast.errors import InputError
from roamcast.storage.recovery import find_recoverable

VERSIONS = sorted(path.name for path in HERE.iterdir() if path.name[0].isdigit())
HINT = f"If {__version__} is not released yet, write its files again: python -m tests.compat.make"


def test_this_version_has_files() -> None:
    assert __version__ in VERSIONS, HINT


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for version in VERSIONS:
        for kind in WORLDS:
            unpack(HERE / version / f"{kind}.tar.xz", folder / version / kind)
    return folder


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_network_is_opened_and_owes_nothing_in_the_end(
    version: str, kind: str, protocol: str, unpacked: Path
) -> None:
    folder = unpacked / version / kind / folder_of(protocol)
    if kind == "killed" and replay_number(folder) != REPLAY:
        with pytest.raises(InputError, match=f"start version {version} once .* and stop it cleanly"):
            new_world(protocol, folder)
        return
    world = new_world(protocol, folder)
    assert len(world.clients) == 5
    check_opened(world)


def replay_number(folder: Path) -> int:
    return find_recoverable(folder / "b0" / "journal").scans[-1].head.replay


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_conversation_is_answered_as_before(version: str) -> None:
    turns = msgspec.json.decode((HERE / version / CONVERSATION_FILE).read_bytes(), type=list[Turn])
    before, now = said_by(turns), said_by(answer(turns))
    assert list(before) == list(now) == ["b0", "b2"]
    for peer in before:
        check_says_as_before(before[peer].numbered, now[peer].numbered)
        check_says_as_before(before[peer].fleeting, now[peer].fleeting)
        assert before[peer].acknowledged == now[peer].acknowledged
        assert {"Burst", "Relayed", "Retain"} <= {message[0] for message in before[peer].numbered}


@pytest.mark.parametrize(("role", "other"), [("dialer", "listener"), ("listener", "dialer")])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_handshake_comes_to_a_link(version: str, role: Role, other: Role) -> None:
    recorded = msgspec.json.decode((HERE / version / HANDSHAKE_FILE).read_bytes(), type=list[Step])
    agreed, said = play(recorded, role)
    assert agreed.peer == IDS[other]
    assert agreed.version >= 1
    before = [step for step in recorded if step.role == role]
    assert [step.is_preface for step in said] == [step.is_preface for step in before]
    for was, is_now in zip(before, said, strict=True):
        if was.is_preface:
            assert is_now.data == was.data
        elif was.fields[0] == "HandshakeHello":
            assert is_now.fields[:4] == was.fields[:4], "the versions that follow may have risen"
        elif was.fields[0] != "Proof":
            assert is_now.fields[: len(was.fields)] == was.fields


def test_the_files_of_a_version_are_small() -> None:
    for version in VERSIONS:
        assert sum(path.stat().st_size for path in (HERE / version).iterdir()) < 100_000
