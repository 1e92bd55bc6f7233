"""`roamcast broker`: how its flags become a configuration, and what they are refused with."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from roamcast.cli import build_app, run
from roamcast.config.sections import Config, Discovery, Listener, Peer
from roamcast.daemon.config import BROKER, load
from roamcast.daemon.workers import Worker


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that brokers were started with; a reload of each is appended too."""
    configurations: list[Config] = []

    def serve(
        config: Config,
        read: Callable[[Callable[[str], None]], Config],
        warnings: list[str],
        worker: Worker | None,
    ) -> None:
        assert worker is None
        again: list[str] = []
        configurations.extend([config, read(again.append)])
        assert again == warnings

    main = ModuleType("roamcast.daemon.main")
    main.__dict__["serve"] = serve
    monkeypatch.setitem(sys.modules, "roamcast.daemon.main", main)
    return configurations


def broker(*arguments: str) -> int:
    return run(build_app(), ["broker", *arguments])


def test_flags_for_a_quick_start(served: list[Config]) -> None:
    flags = "--id a --listen 127.0.0.1:1884 --listen ws://[::1]:8080 --peer b=127.0.0.1:7001 "
    flags += "--peer c=localhost:7002 --peer-listen 127.0.0.1:7000 --data site-a --mobility relocation "
    flags += "--set mqtt.receive_maximum=64 --set journal.sync=process"
    assert broker(*flags.split()) == 0
    config, again = served
    assert config == again
    assert (config.id, config.data, config.mobility.protocol) == ("a", "site-a", "relocation")
    assert config.listeners == (Listener(port=1884), Listener(address="::1", port=8080, kind="ws"))
    assert config.peers == (
        Peer(id="b", address="127.0.0.1:7001"),
        Peer(id="c", address="localhost:7002"),
    )
    assert (config.link.address, config.link.port) == ("127.0.0.1", 7000)
    assert (config.mqtt.receive_maximum, config.journal.sync) == (64, "process")


def test_a_flag_looks_for_other_brokers(served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker("--mobility", "mft", "--discover", "lo:7400") == 0
    config = served[0]
    assert config.discovery == Discovery(enabled=True, interface="lo", port=7400)
    assert (config.link.address, config.link.port) == ("127.0.0.1", 0)
    monkeypatch.setenv("ROAMCAST_LINK_SECRET", "a secret of all these brokers")
    assert broker("--mobility", "mft", "--discover", "wlan0") == 0
    assert (served[-1].discovery.interface, served[-1].link.address) == ("wlan0", "0.0.0.0")
    listening = ("--peer-listen", "192.0.2.1:7000")
    assert broker("--mobility", "mft", "--discover", "wlan0", *listening) == 0
    assert (served[-1].link.address, served[-1].link.port) == ("192.0.2.1", 7000)


def test_discovery_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert broker("--mobility", "mft", "--discover", "lo:nothing") == 2
    assert "--discover" in capsys.readouterr().err
    assert broker("--discover", "lo") == 2
    assert "valid with discovery are mft" in capsys.readouterr().err


def test_without_flags_it_is_the_default(served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROAMCAST_ID", "from-variable")
    assert broker() == 0
    assert served[0] == load(None, {"ROAMCAST_ID": "from-variable"}, {})


def test_flags_win_over_the_file(served: list[Config], tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("id = 'north'\n[[listener]]\nport = 1\n[[listener]]\nport = 2\n")
    assert broker("--config", str(path), "--listen", "127.0.0.1:0", "--set", "id=south") == 0
    assert served[0].id == "south"
    assert served[0].listeners == (Listener(port=0),)


def test_the_default_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert broker("--print-config") == 0
    assert capsys.readouterr().out == BROKER.default_file()


def test_a_check_starts_nothing(
    served: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[[listener]]\naddress = '0.0.0.0'\nanonymous = true\n")
    assert broker("--check", "--config", str(path)) == 0
    output = capsys.readouterr()
    assert output.out == f"{path} is valid\n"
    assert re.fullmatch(r"roamcast: warning: listener\.0 .* accepted without a password .*\n", output.err)
    path.write_text("idd = 'x'\n")
    assert broker("--check", "--config", str(path)) == 2
    expected = f"roamcast: {path}: the top level has no key 'idd'; did you mean 'id'?\n"
    assert capsys.readouterr().err == expected
    assert served == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "id"], "--set id: valid is KEY=VALUE, as in mqtt.receive_maximum=64"),
        (["--set", "=x"], "--set =x: valid is KEY=VALUE"),
        (["--set", "mqtt.qos_mx=1"], "--set mqtt.qos_mx: there is no key 'mqtt.qos_mx'; did you mean"),
        (["--listen", "1883"], "--listen '1883': valid is HOST:PORT with a port from 0 to 65535"),
        (["--listen", "::1:1883"], "--listen '::1:1883': an IPv6 address is written in brackets"),
        (["--listen", "wsx://127.0.0.1:1"], "--listen wsx://127.0.0.1:1: did you mean 'ws'?"),
        (["--listen", "quic://127.0.0.1:1"], "--listen quic://127.0.0.1:1: valid kinds are tcp and ws"),
        (["--listen", "tls://127.0.0.1:1"], "tls needs certificates; write a [[listener]] into a file"),
        (["--listen", "0.0.0.0:1883"], "listener.0 (tcp 0.0.0.0:1883): nobody could connect"),
        (["--peer", "b"], "peer.0: b could not connect here, and has no address; set peer.0.address"),
        (["--peer", "b=host"], "--peer 'host': valid is HOST:PORT"),
        (["--peer", "b c=127.0.0.1:1"], '--peer: peer.0.id = "b c": valid is a name'),
        (["--peer-listen", "x"], "--peer-listen 'x': valid is HOST:PORT"),
        (["--peer-listen", "0.0.0.0:7001"], "link.address = 0.0.0.0: a link that is not on loopback"),
        (["--mobility", "relocatoin"], "there is no such protocol; did you mean 'relocation'?"),
        (["--config", "absent.toml"], "absent.toml: cannot be read (No such file or directory)"),
        (["--lisen", "x"], "'roamcast broker' has no option --lisen; did you mean '--listen'?"),
    ],
)
def test_a_mistake_is_one_line(
    served: list[Config], capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert broker(*arguments) == 2
    output = capsys.readouterr()
    assert line in output.err
    assert output.err.count("\n") == 1
    assert served == []
