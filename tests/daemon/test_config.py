"""A broker's configuration: every source, every line that refuses one, and the default file."""

import json
import os
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.config.schema import docs_of, fields_of, keys_of
from roamcast.config.sections import Config, Link, Listener, Peer
from roamcast.daemon.config import BROKER, load
from roamcast.daemon.settings import read_model, site_settings
from roamcast.errors import InputError
from roamcast.mqtt.server.access import AccessRules, Rule

SECRET = "a secret of some length"


def write(folder: Path, text: str, name: str = "site.toml", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def load_text(folder: Path, text: str, **flags: Any) -> Config:
    return load(write(folder, text), {}, flags)


def refusal(folder: Path, text: str) -> str:
    """What a file is refused with, without the name of the file."""
    path = write(folder, text)
    with pytest.raises(InputError) as refused:
        load(path, {}, {})
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ").replace(f"{folder}/", "")


# The default file.


def test_the_printed_file_is_toml_and_says_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, BROKER.default_file())
    assert load(Path("site.toml"), {}, {}) == Config() == load(None, {}, {})


def test_the_printed_file_names_every_key_and_says_what_it_is_for() -> None:
    said: list[str] = []
    section = above = ""
    for line in BROKER.default_file().splitlines():
        line = re.sub(r"^#(?! )", "", line)
        if heading := re.match(r"\[+([\w.]+)\]+", line):
            section = f"{heading[1]}." + ("N." if line.startswith("[[") else "")
        elif key := re.match(r"(\w+) = ", line):
            said.append(section + key[1])
            assert above.startswith("# "), f"{said[-1]} has no comment"
        above = line
    assert sorted(said) == sorted(key.name for key in keys_of(Config))


def test_the_commented_examples_are_valid_too(tmp_path: Path) -> None:
    # An entry is uncommented by taking away one # of each line.
    lines = [re.sub(r"^#(?! )", "", line) for line in BROKER.default_file().splitlines()]
    config = load_text(tmp_path, "\n".join(lines))
    assert config.peers == (Peer(id="b", address="127.0.0.1:7001"),)
    assert config.access.rules == (Rule(verdict="allow", topic="cars/%c/#", user="user:*"),)


def test_every_key_is_documented() -> None:
    assert [key.name for key in keys_of(Config) if not key.field.doc] == []
    assert docs_of(Listener)["port"].startswith("Port to listen on. 1883 is usual")


def test_the_defaults_are_open_to_this_machine_only() -> None:
    config = Config()
    assert [listener.address for listener in config.listeners] == ["127.0.0.1"]
    assert config.link.port is None
    assert not config.metrics.enabled
    assert config.events.level == "none"
    assert config.allows_anonymous(config.listeners[0])


# Sources.


def test_a_file_sets_keys_and_leaves_the_others(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        """
        id = "north"
        [[listener]]
        port = 0
        [[listener]]
        kind = "ws"
        port = 8080
        origins = ["https://example.org"]
        [mobility.settings]
        neighbours_max = "none"
        delay_bound_s = 2
        [[access.rule]]
        verdict = "deny"
        topic = ["a/#", "b"]
        """,
    )
    assert config.id == "north"
    assert config.listeners == (
        Listener(port=0),
        Listener(kind="ws", port=8080, origins=("https://example.org",)),
    )
    assert config.mobility.settings.neighbours_max is None
    assert config.mobility.settings.delay_bound_s == 2.0
    assert config.access_rules == AccessRules((Rule(verdict="deny", topic=("a/#", "b")),), "deny")
    assert config.mqtt == Config().mqtt


def test_variables_win_over_the_file_and_flags_over_variables(tmp_path: Path) -> None:
    path = write(tmp_path, 'id = "file"\nnetwork = "file"\n[mqtt]\nqos_max = 0\nretained = true\n')
    variables = {
        "ROAMCAST_ID": "variable",
        "ROAMCAST_NETWORK": "variable",
        "ROAMCAST_MQTT_RETAINED": "False",
        "ROAMCAST_QUOTAS_PUBLISH_PER_S": "2.5",
        "ROAMCAST_QUOTAS_CONNECTIONS_PER_ADDRESS_MAX": "none",
        "ROAMCAST_LISTENER_0_PORT": "0",
        "ROAMCAST_LISTENER_1_PORT": "2883",
        "ROAMCAST_LISTENER_1_KIND": "ws",
        "ROAMCAST_LISTENER_1_ORIGINS": "https://a.example, https://b.example",
        "HOME": "/nowhere",
    }
    config = load(path, variables, {"id": "flag", "mqtt.receive_maximum": "64"})
    assert (config.id, config.network) == ("flag", "variable")
    assert (config.mqtt.qos_max, config.mqtt.retained, config.mqtt.receive_maximum) == (0, False, 64)
    assert (config.quotas.publish_per_s, config.quotas.connections_per_address_max) == (2.5, None)
    assert config.listeners == (
        Listener(port=0),
        Listener(port=2883, kind="ws", origins=("https://a.example", "https://b.example")),
    )


def test_every_plain_key_can_be_set_by_its_variable_and_by_set(tmp_path: Path) -> None:
    entries = {"listener": "[[listener]]", "peer": '[[peer]]\nid = "b"\naddress = "127.0.0.1:1"'}
    entries["detour"] = '[[detour]]\nid = "b"\naddress = "127.0.0.1:1"'
    entries["access.rule"] = '[[access.rule]]\nverdict = "allow"'
    entries["location.state"] = '[[location.state]]\nname = "budget"'
    entries["steering.broker"] = '[[steering.broker]]\nid = "b"\naddress = "127.0.0.1:1"'
    entries["view.token"] = f'[[view.token]]\nname = "budget"\nsha256 = "{"0" * 64}"'
    path = write(tmp_path, "\n".join(entries.values()))
    for key in keys_of(Config):
        if key.field.is_a("path") or key.name in ("link.secret", "link.secret_variable"):
            continue
        value = key.field.default
        if key.field.required or key.name == "peer.N.address":
            given = {"id": "b", "address": "127.0.0.1:1", "verdict": "allow", "name": "budget"}
            given["sha256"] = "0" * 64
            value = given[key.path[-1]]
        text = "none" if value is None else ",".join(value) if isinstance(value, tuple) else str(value)
        wanted = load(path, {}, {})
        variable = key.variable("ROAMCAST").replace("_N_", "_0_")
        assert load(path, {variable: text}, {}) == wanted, key.name
        if not key.field.is_a("secret"):
            assert load(path, {}, {key.name.replace(".N.", ".0."): text}) == wanted, key.name


def test_a_stranger_among_the_variables_is_named_and_not_refused() -> None:
    lines: list[str] = []
    variables = {
        "ROAMCAST_MQTT_QOS_MX": "1",
        "ROAMCAST_PORT_1883_TCP_ADDR": "10.0.0.1",
        "ROAMCAST_DEBUG": "1",
    }
    assert load(None, variables, {}, lines.append) == Config()
    assert lines[0] == (
        "environment variable ROAMCAST_MQTT_QOS_MX is not used; did you mean 'ROAMCAST_MQTT_QOS_MAX'?"
    )
    assert lines[1].startswith("environment variable ROAMCAST_PORT_1883_TCP_ADDR is not used; ")
    assert len(lines) == 2


def test_paths_are_relative_to_the_file_or_else_to_where_we_are(tmp_path: Path) -> None:
    graph = write(tmp_path, "{}", "graph.json")
    config = load_text(tmp_path, '[location]\nmovement_graph = "graph.json"\n[journal]\nfolder = "/j"')
    assert config.location.movement_graph == str(graph)
    assert config.data == str(tmp_path / "roamcast-data")
    assert (config.journal_folder, config.events_folder) == (Path("/j"), tmp_path / "roamcast-data/events")
    assert load_text(tmp_path, 'data = "x"', data="y").data == "y"
    assert load(None, {"ROAMCAST_DATA": "z"}, {}).data == "z"


# What is refused, key by key.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("id = ", "not TOML: Invalid value (at end of document)"),
        ("idd = 'a'", "the top level has no key 'idd'; did you mean 'id'?"),
        ("[mqtt]\npacket_bytes = 1", "[mqtt] has no key 'packet_bytes'; did you mean 'packet_bytes_max'?"),
        ("[log]\nretained = true", "[log] has no key 'retained'; there is 'mqtt.retained'"),
        ("[log]\nzzz = 1", "[log] has no key 'zzz'; valid are level, format"),
        ("[[listener]]\nprot = 1", "[listener.0] has no key 'prot'; did you mean 'port'?"),
        ("[mobility.settings]\nneighbors_max = 1", "did you mean 'neighbours_max'?"),
        ("mqtt = 1", "mqtt = 1: valid is a table"),
        ("[listener]\nport = 1", "listener = {'port': 1}: valid is a list of tables, [[listener]]"),
        ("listener = [1]", "listener.0 = 1: valid is a table"),
        ("[[peer]]\nid = 'b'", "peer.0: b could not connect here, and has no address; set peer.0.address"),
        ("id = ''", 'id = "": valid is a name of up to 64 letters, digits'),
        ("id = 'a b'", 'id = "a b": valid is a name of up to 64 letters'),
        ("id = 7", "id = 7: valid is a name of up to 64 letters"),
        ("[mqtt]\nqos_max = 3", "mqtt.qos_max = 3: valid is an integer from 0 to 2"),
        ("[mqtt]\nqos_max = '1'", 'mqtt.qos_max = "1": valid is an integer from 0 to 2'),
        ("[mqtt]\nqos_max = true", "mqtt.qos_max = true: valid is an integer from 0 to 2"),
        ("[mqtt]\nretained = 1", "mqtt.retained = 1: valid is true or false"),
        ("[mqtt]\nconnect_timeout_s = nan", "mqtt.connect_timeout_s = nan: valid is a number above 0"),
        ("[mqtt]\nsettle_timeout_s = inf", "mqtt.settle_timeout_s = inf: valid is a number from 0 to 300"),
        ("[quotas]\ndrop = 'none'", 'quotas.drop = "none": valid is "newest" or "oldest"'),
        ("[quotas]\npublish_per_s = 0", 'quotas.publish_per_s = 0: valid is a number above 0 or "none"'),
        ("[[listener]]\norigins = 'x'", 'listener.0.origins = "x": valid is a list, each a text'),
        ("[[listener]]\nkind = 'quic'", 'listener.0.kind = "quic": valid is "tcp" or "tls" or "ws" or "wss"'),
        ("[[peer]]\nid = 'b'\naddress = 'host'", 'peer.0.address = "host": valid is HOST:PORT'),
        ("[link]\nsecret = 12345", "link.secret = (hidden): valid is a text"),
        ("id = 2024-01-01", "id = 2024-01-01: valid is a name"),
    ],
)
def test_a_wrong_key_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    assert line in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("mqtt.qos_mx", "1", "there is no key 'mqtt.qos_mx'; did you mean 'mqtt.qos_max'?"),
        ("zzz", "1", "--set zzz: there is no key 'zzz'; the reference lists all keys"),
        ("mqtt", "1", "--set mqtt: there is no key 'mqtt'; did you mean"),
        ("mqtt.qos_max", "high", "--set mqtt.qos_max: 'high' is not valid; valid is an integer from 0 to 2"),
        ("mqtt.retained", "yes", "--set mqtt.retained: 'yes' is not valid; valid is true or false"),
        ("listener.2.port", "1", "--set listener.2.port: there are 1 entries; the next number is 1"),
        ("listener.0.prot", "1", "did you mean 'listener.N.port'?"),
        ("mobility.protocol", "mhh", "mobility.protocol = mhh: there is no such protocol; "),
        ("id", "a b", "--id: 'a b' is not valid; valid is a name"),
        (
            "link.secret",
            SECRET,
            "--set link.secret: every user of this machine can see a command line; "
            "set link.secret_file, or the environment variable ROAMCAST_LINK_SECRET",
        ),
    ],
)
def test_a_wrong_flag_is_one_line(key: str, value: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        load(None, {}, {key: value})
    assert line in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_wrong_variable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        load(None, {"ROAMCAST_MQTT_QOS_MAX": "x"}, {})
    assert str(refused.value) == (
        "environment variable ROAMCAST_MQTT_QOS_MAX: 'x' is not valid; valid is an integer from 0 to 2"
    )
    path = write(tmp_path, "mqtt = 1")
    with pytest.raises(InputError, match=r"site\.toml: mqtt = 1: valid is a table"):
        load(path, {"ROAMCAST_MQTT_QOS_MAX": "1"}, {})
    path = write(tmp_path, "listener = 1")
    with pytest.raises(InputError, match="ROAMCAST_LISTENER_0_PORT: listener is not a list of tables"):
        load(path, {"ROAMCAST_LISTENER_0_PORT": "1"}, {})


def test_an_entry_given_by_a_flag_is_named_by_the_flag() -> None:
    with pytest.raises(InputError) as refused:
        load(None, {}, {"peer": [{"id": "b c", "address": "127.0.0.1:1"}]})
    assert str(refused.value).startswith('--peer: peer.0.id = "b c": valid is a name')


def test_a_file_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    for path, line in [
        (tmp_path / "absent.toml", "cannot be read (No such file or directory); name a TOML file"),
        (tmp_path, "cannot be read (Is a directory); name a TOML file"),
    ]:
        with pytest.raises(InputError, match=re.escape(f"{path}: {line}")):
            load(path, {}, {})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"id = '\xff'")
    with pytest.raises(InputError, match="byte 7 is not UTF-8"):
        load(binary, {}, {})
    with binary.open("wb") as file:
        file.truncate(5_000_000)
    with pytest.raises(InputError, match="larger than 4194304 bytes"):
        load(binary, {}, {})


# What is refused because keys do not go together, or would not be safe.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[[listener]]\naddress = '0.0.0.0'",
            "listener.0 (tcp 0.0.0.0:1883): nobody could connect; set access.users or listener.0.client_ca, "
            "or listener.0.anonymous = true to let everyone in",
        ),
        ("[[listener]]\naddress = '::'", "listener.0 (tcp [::]:1883): nobody could connect"),
        ("[[listener]]\naddress = 'localhost.example.org'", "nobody could connect"),
        (
            "[[listener]]\naddress = '0.0.0.0'\n[access]\nanonymous = 'loopback'",
            "listener.0 (tcp 0.0.0.0:1883): nobody could connect",
        ),
        ("[access]\nanonymous = 'never'", "listener.0 (tcp 127.0.0.1:1883): nobody could connect"),
        ("[[listener]]\nanonymous = false", "listener.0 (tcp 127.0.0.1:1883): nobody could connect"),
        ("[[listener]]\n[[listener]]", "listener.1 and listener.0 are both 127.0.0.1:1883; change one"),
        ("[link]\nport = 1883", "link and listener.0 are both 127.0.0.1:1883"),
        ("[metrics]\nenabled = true\nport = 1883", "metrics and listener.0 are both 127.0.0.1:1883"),
        ("[[listener]]\nkind = 'tls'", "listener.0 (tls 127.0.0.1:1883): certificate is missing; name a PEM"),
        (
            "[[listener]]\nkind = 'wss'\ncertificate = 'absent.pem'\nkey = 'absent.pem'",
            "listener.0.certificate = absent.pem: cannot be read (No such file or directory); name a file",
        ),
        (
            "[[listener]]\ncertificate = 'x'",
            'listener.0 (tcp 127.0.0.1:1883): certificate is only for tls and wss; set kind = "tls"',
        ),
        (
            "[[listener]]\nkind = 'ws'\nrequire_certificate = true",
            'require_certificate is only for tls and wss; set kind = "wss"',
        ),
        (
            "[[listener]]\nkind = 'tls'\ncertificate = 'site.toml'\nkey = 'site.toml'\n"
            "require_certificate = true",
            "require_certificate needs client_ca",
        ),
        (
            "[[peer]]\nid = 'broker'\naddress = '127.0.0.1:1'",
            "peer.0.id = broker: this is the id of this broker",
        ),
        (
            "[[peer]]\nid = 'b'\naddress = '127.0.0.1:1'\n[[peer]]\nid = 'b'\naddress = '127.0.0.1:2'",
            "peer.0.id = b: 2 peers have this id; keep one",
        ),
        ("[[peer]]\nid = 'b'\naddress = 'h:0'", "peer.0.address = h:0: valid is a port from 1 to 65535"),
        ("[[peer]]\nid = 'b'\naddress = 'h:70000'", "peer.0.address = 'h:70000': valid is HOST:PORT"),
        (
            "[[peer]]\nid = 'b'\naddress = '10.0.0.1:7001'",
            "peer.0.address = 10.0.0.1: a link that is not on loopback needs authentication; "
            "set link.secret_file, or link.tls with certificate, key and ca",
        ),
        ("[link]\naddress = '0.0.0.0'\nport = 7001", "link.address = 0.0.0.0: a link that is not on"),
        ("[link]\nsecret = 'short'", "link.secret is too short; valid is 16 characters or more"),
        (
            f"[link]\nsecret = '{SECRET}'\nsecret_variable = 'X'",
            "link.secret and link.secret_variable exclude each other; keep one",
        ),
        ("[link]\nsecret_variable = 'X'", "link.secret_variable = X: there is no such variable"),
        ("[link]\nsecret_file = 'absent'", "link.secret_file = absent: cannot be read (No such file"),
        ("[link]\ntls = true", "link.tls: certificate is missing; name a PEM file in link.certificate"),
        ("[link]\nca = 'x'", "link.ca is only for links with TLS; set link.tls = true"),
        (
            "[link]\nreconnect_min_s = 9\nreconnect_max_s = 3",
            "link.reconnect_min_s = 9.0: valid is at most link.reconnect_max_s, 3.0",
        ),
        ("[link]\nheartbeat_s = 10", "link.heartbeat_s = 10.0: valid is less than link.timeout_s, 10.0"),
        (
            "[mobility]\nprotocol = 'multihop_handoff'",
            "mobility.protocol = multihop_handoff: there is no such protocol; "
            "did you mean 'multi_hop_handoff'?",
        ),
        ("[mobility]\nprotocol = 'zzz'", "mobility.protocol = zzz: there is no such protocol; valid are "),
        ("[mobility]\nrouting = 'zzz'", "mobility: routing strategy 'zzz': valid are flooding"),
        ("[mobility]\nprotocol = 'phoenix'\nrouting = 'flooding'", "phoenix does not work with flooding"),
        ("[mobility]\nprotocol = 'sub_unsub'", "mobility: protocol sub_unsub needs a bound"),
        ("[mobility.settings]\ncache_ttl_s = -1", "mobility.settings.cache_ttl_s = -1.0: valid is 0 or more"),
        ("[access]\nusers = 'absent'", "access.users = absent: cannot be read (No such file or directory)"),
        ("[access]\nbackoff_s = 301", "access.backoff_s = 301.0: valid is at most access.backoff_max_s"),
        (
            "[[access.rule]]\nverdict = 'allow'\n[[access.rule]]\nverdict = 'deny'\ntopic = 'a/#/b'",
            "access.rule.1: topic filter 'a/#/b', position 3: '#' must be the whole last level",
        ),
        ("[[access.rule]]\nverdict = 'allow'\nwhere = 'speed <'", "access.rule.0: selector"),
        ("[[access.rule]]\nverdict = 'allow'\nuser = []", "access.rule.0: user is empty; leave it out"),
        ("[[access.rule]]\nverdict = 'allow'\ntopic = ''", "access.rule.0: topic is empty; leave it out"),
        (
            "[quotas]\nqueue_bytes_max = 2048",
            "quotas.queue_bytes_max = 2048: valid is at least mqtt.packet_bytes_max, 1048576",
        ),
        (
            "[journal]\nsnapshot_after_bytes = 8_000_000_000",
            "journal.bytes_max = 1073741824: valid is at least 8000000000, which is",
        ),
        (
            "[events]\npseudonym_key = 'x'\npseudonym_key_file = 'y'",
            "events.pseudonym_key and events.pseudonym_key_file exclude each other; keep one",
        ),
        ("[location]\nmovement_graph = 'absent'", "location.movement_graph = absent: cannot be read"),
        ("[location]\nattributes = ['lat', 'lon']", "location.attributes: set movement_graph (locations are"),
        (
            "[location]\nat = 'x'",
            "location.at: set movement_graph (locations are names) or position_step_m too",
        ),
        (
            "[location]\nposition_step_m = 10\nat = 'lobby'",
            "location.at: location 'lobby': valid is LATITUDE",
        ),
        ("[location]\ntopics = ['a#']", "location.topics.0: topic filter 'a#'"),
        ("[location]\nposition_step_m = 10\nattributes = ['a', 'b', 'c']", "location.attributes"),
        (
            "[[location.state]]\nname = 'x'\ngraph = 'absent'",
            "location.state.0.graph = absent: cannot be read",
        ),
        (
            "[[location.state]]\nname = 'my x'",
            'location.state.0.name = "my x": valid is a name of small letters',
        ),
        (
            "[[location.state]]\nname = 'x'\n[[location.state]]\nname = 'x'",
            "location.state.1.name = x: there is one of that name already",
        ),
        (
            "[[location.state]]\nname = 'x'\nlowest = 5\nhighest = 1",
            "location.state.0: lowest = 5 is above highest = 1",
        ),
        ("[location]\nstay_s = -1", "location.stay_s = -1: valid is a number from 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    assert line in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[[listener]]\naddress = '0.0.0.0'\nanonymous = true",
            "listener.0 (tcp 0.0.0.0:1883): anyone who can connect is accepted without a password "
            "(listener.0.anonymous = true)",
        ),
        (
            "[[listener]]\naddress = '10.0.0.1'\n[access]\nusers = 'users'",
            "listener.0 (tcp 10.0.0.1:1883): passwords travel unencrypted; kinds tls and wss encrypt them",
        ),
        (
            f"[link]\naddress = '0.0.0.0'\nport = 1\nsecret = '{SECRET}'",
            "link.address = 0.0.0.0: links are authenticated but not encrypted; "
            "link.tls = true encrypts them",
        ),
        (
            "[events]\nlevel = 'full'",
            "the event log names clients as they are; events.pseudonym_key_file replaces their names",
        ),
        (
            "[metrics]\nenabled = true\naddress = '0.0.0.0'",
            "metrics.address = 0.0.0.0: anyone who can connect can read the metrics",
        ),
        (
            "[access]\ndefault = 'allow'\n[[access.rule]]\nverdict = 'allow'",
            'access.default = "allow" and no rule denies anything: the rules have no effect',
        ),
    ],
)
def test_what_is_unwise_is_said(tmp_path: Path, text: str, line: str) -> None:
    write(tmp_path, "", "users")
    lines: list[str] = []
    load(write(tmp_path, text), {}, {}, lines.append)
    assert lines == [line]


# Secrets.


def test_a_secret_can_be_kept_in_three_places(tmp_path: Path) -> None:
    write(tmp_path, f"  {SECRET}\n", "secret")
    assert load_text(tmp_path, "[link]\nsecret_file = 'secret'").link.secret == SECRET
    assert load_text(tmp_path, f"[link]\nsecret = '{SECRET}'").link.secret == SECRET
    path = write(tmp_path, "[link]\nsecret_variable = 'MINE'")
    assert load(path, {"MINE": SECRET}, {}).link.secret == SECRET
    assert load(None, {"ROAMCAST_LINK_SECRET": SECRET}, {}).link.secret == SECRET
    assert load_text(tmp_path, "[events]\npseudonym_key_file = 'secret'").events.pseudonym_key == SECRET


def test_a_secret_is_not_shown() -> None:
    config = load(None, {"ROAMCAST_LINK_SECRET": SECRET, "ROAMCAST_EVENTS_PSEUDONYM_KEY": SECRET}, {})
    assert SECRET not in f"{config!r} {config} {config.link}"
    assert "secret=(hidden)" in repr(config)
    assert "secret=''" in repr(Link())


@pytest.mark.parametrize(("mode", "what"), [(0o604, "read"), (0o602, "write")])
def test_a_secret_that_everyone_can_read_is_refused(tmp_path: Path, mode: int, what: str) -> None:
    secret = write(tmp_path, SECRET, "secret", mode)
    line = refusal(tmp_path, "[link]\nsecret_file = 'secret'")
    assert line == (
        f"link.secret_file = secret: every user of this machine can {what} it (mode {mode:o}); "
        "run: chmod o= secret"
    )
    users = refusal(tmp_path, "[access]\nusers = 'secret'")
    assert users.startswith("access.users = secret: every user of this machine can")
    secret.chmod(0o640)
    assert load_text(tmp_path, "[link]\nsecret_file = 'secret'").link.secret == SECRET


def test_a_key_that_everyone_can_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "", "cert.pem", 0o644)
    write(tmp_path, "", "key.pem", 0o644)
    files = "certificate = 'cert.pem'\nkey = 'key.pem'"
    line = "key = key.pem: every user of this machine can read it (mode 644); run: chmod o= key.pem"
    assert refusal(tmp_path, f"[[listener]]\nkind = 'tls'\n{files}") == f"listener.0.{line}"
    assert refusal(tmp_path, f"[link]\ntls = true\nca = 'cert.pem'\n{files}") == f"link.{line}"


def test_a_file_with_a_secret_in_it_is_kept_like_one(tmp_path: Path) -> None:
    path = write(tmp_path, f"[link]\nsecret = '{SECRET}'", mode=0o644)
    with pytest.raises(InputError) as refused:
        load(path, {}, {})
    assert str(refused.value) == (
        f"link.secret = {path}: every user of this machine can read it (mode 644); run: chmod o= {path}, "
        "or move the secret into link.secret_file"
    )
    path.write_text("[link]\nsecret = ''")
    assert load(path, {}, {}).link.secret == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b" \n", "must hold a text of 1 to 65536 bytes"),
        (b"x" * 70_000, "must hold a text of 1 to 65536 bytes"),
        (b"\xff", "holds bytes that are no UTF-8 text"),
    ],
)
def test_a_secret_file_without_a_secret_is_refused(tmp_path: Path, content: bytes, line: str) -> None:
    path = write(tmp_path, "", "secret")
    path.write_bytes(content)
    assert line in refusal(tmp_path, "[link]\nsecret_file = 'secret'")


# Who may come in.


@pytest.mark.parametrize(
    ("listener", "access", "allowed"),
    [
        ("", "", True),
        ("", "users = 'users'", False),
        ("", "users = 'users'\nanonymous = 'loopback'", True),
        ("", "users = 'users'\nanonymous = 'never'", False),
        ("anonymous = true", "users = 'users'\nanonymous = 'never'", True),
        ("anonymous = false", "users = 'users'\nanonymous = 'loopback'", False),
        ("address = '0.0.0.0'", "users = 'users'\nanonymous = 'loopback'", False),
        ("address = '0.0.0.0'\nanonymous = true", "", True),
        ("address = '::1'", "", True),
        ("address = 'LocalHost'", "", True),
        ("address = '127.8.8.8'", "", True),
    ],
)
def test_who_may_come_without_a_name(tmp_path: Path, listener: str, access: str, allowed: bool) -> None:
    write(tmp_path, "", "users")
    config = load_text(tmp_path, f"[[listener]]\n{listener}\n[access]\n{access}")
    assert config.allows_anonymous(config.listeners[0]) is allowed


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("", "allow"),
        ("[[access.rule]]\nverdict = 'deny'", "deny"),
        ("[access]\ndefault = 'allow'\n[[access.rule]]\nverdict = 'deny'", "allow"),
        ("[access]\ndefault = 'deny'", "deny"),
    ],
)
def test_what_no_rule_decides(tmp_path: Path, text: str, default: str) -> None:
    assert load_text(tmp_path, text).access_rules.default == default


def test_keys_do_not_collide_as_variables() -> None:
    names = [key.variable("ROAMCAST") for key in keys_of(Config)]
    assert len(names) == len(set(names))
    assert not [name for name in names if re.search(r"_\d+(_|$)", name)], "a number means an entry"


def test_a_configuration_survives_encoding() -> None:
    rules = AccessRules((Rule(verdict="deny", topic=("a", "b"), where="x < 1"),), "deny")
    encoded = msgspec.msgpack.encode(rules)
    assert msgspec.msgpack.decode(encoded, type=AccessRules) == rules


def test_the_process_environment_is_a_valid_source() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ROAMCAST_")}
    assert load(None, variables, {}) == Config()


def test_fields_are_found_by_the_names_that_files_use() -> None:
    assert fields_of(Config)["listener"].attribute == "listeners"
    assert tomllib.loads(BROKER.default_file())["listener"][0]["port"] == 1883


# The model of where clients go.


def test_a_model_is_read_and_one_that_is_of_no_use_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    text = 'id = "b"\n[mobility]\nprotocol = "roam"\nmodel = "model.json"\nmodel_age_s_max = 100.0\n'

    def read(model: object = None) -> tuple[str, str]:
        path.unlink(missing_ok=True)
        if model is not None:
            path.write_text(json.dumps(model))
        config = load_text(tmp_path, text)
        found, why = read_model(config)
        assert site_settings(config).broker.protocol.neighbour_graph == found
        return found, why

    rows = {"b": {"a": {"probability": 1.0}}}
    usable = {"brokers": rows, "about": {"made_at_s": time.time()}}
    assert read(usable) == (json.dumps(usable), "")
    assert read() == ("", "it cannot be read (No such file or directory)")
    assert read({"brokers": rows, "about": {"made_at_s": 0}})[1].startswith("the model was made ")
    assert read({"brokers": {"x": {}}})[1] == "the model is of other brokers: b is not one of them"
    assert read([])[1].startswith("the model: expected an object")
    assert read_model(load_text(tmp_path, 'id = "b"\n')) == ("", "")
