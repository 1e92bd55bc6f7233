"""The configuration of a proxy: what is refused, and a reference that is what the code says."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roamcast.cli import build_app
from roamcast.config.schema import keys_of
from roamcast.config.writing import reference_table
from roamcast.errors import InputError
from roamcast.proxy.config import PROXY, Config, load

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "proxy.md"
MARK = "<!-- From here on written by "


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_printed_configuration_is_the_default_one(tmp_path: Path) -> None:
    config = load(write(tmp_path, PROXY.default_file()), {}, {})
    assert config == Config(data=str(tmp_path / "proxy-data"))


def test_the_reference_is_what_the_code_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    head, mark, rest = text.partition(MARK)
    assert mark, "the mark is gone"
    wanted = f"{head}{mark}{rest.partition('-->')[0]}-->\n\n{reference_table(Config)}"
    if os.environ.get("ROAMCAST_REGENERATE") == "1":
        GUIDE.write_text(wanted, encoding="utf-8")
    assert GUIDE.read_text(encoding="utf-8") == wanted


def test_every_key_says_what_it_is_for() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", reference_table(Config), re.MULTILINE)
    assert [name for name, *_ in rows] == [key.path[-1] for key in keys_of(Config)]


def test_the_example_of_the_guide_can_be_used(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length")
    secret.chmod(0o600)
    config = load(write(tmp_path, example), {}, {})
    assert config.peers.secret == "a secret of some length"
    assert config.sites == ("b",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[broker]\nkind = "mosquito"', "broker.kind = mosquito: did you mean 'mosquitto'"),
        ('[broker]\nurl = "mqtt://me:secret@127.0.0.1"', "clients are told broker.url"),
        ('[[proxy]]\nsite = "b"\naddress = "127.0.0.1:1"', "peers.secret_file is missing"),
        ('[peers]\nsecret = "short"', "valid is 16 characters or more"),
        ('[[proxy]]\nsite = "a"\naddress = "127.0.0.1:1"', "site a is listed twice"),
        ('[listener]\naddress = "0.0.0.0"', "listener.address is not loopback: set access.users"),
        ('[mqtt]\nenabled = true\naddress = "0.0.0.0"', "mqtt.address is not loopback: set access.users"),
        ('[listener]\ncertificate = "x"', "certificate and key belong together"),
        ('[mqtt]\nenabled = true\n[broker]\nkind = "nats"', "needs a broker of kind mosquitto, not nats"),
        ("[buffers]\nbytes_max = 5", "buffers.bytes_max = 5: valid is an integer, at least 1024"),
        ("[bufers]\nbytes_max = 5", "did you mean 'buffers'"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        load(write(tmp_path, text), {}, {})


def test_a_secret_in_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every user of this machine can read it"):
        load(write(tmp_path, '[peers]\nsecret = "a secret of some length"', 0o644), {}, {})


def test_a_secret_on_the_command_line_is_refused() -> None:
    with pytest.raises(InputError, match=r"peers\.secret: every user of this machine can see a command line"):
        load(None, {}, {"peers.secret": "a secret of some length"})


def test_credentials_go_into_the_url_of_the_proxy_alone(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p@ss")
    password.chmod(0o600)
    flags = {"broker.user": "me", "broker.password_file": str(password)}
    broker = load(None, {}, flags).broker
    assert (broker.own_url, broker.url) == ("mqtt://me:p%40ss@127.0.0.1:1883", "mqtt://127.0.0.1:1883")


def test_flags_stand_for_keys(tmp_path: Path) -> None:
    command = [
        *("proxy", "--site", "x", "--broker", "nats=nats://127.0.0.1:4222", "--listen", "127.0.0.1:0"),
        *("--data", str(tmp_path), "--check"),
    ]
    result = CliRunner().invoke(build_app(), command)
    assert (result.exit_code, result.output) == (0, "the configuration is valid\n")


@pytest.mark.parametrize("flag", ["--broker=mosquitto", "--proxy=b", "--listen=7110"])
def test_a_flag_of_the_wrong_form_says_what_would_be_valid(flag: str) -> None:
    result = CliRunner().invoke(build_app(), ["proxy", flag])
    assert isinstance(result.exception, InputError)
    assert "valid is" in str(result.exception)
