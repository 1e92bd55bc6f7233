"""`roamcast pub` and `roamcast sub` as users run them, against real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.servers import (
    DEADLINE_S,
    ROAMCAST,
    Broker,
    Mosquitto,
    Server,
    free_port,
    running,
    running_line,
)

from roamcast.cli import build_app, run
from roamcast.cli.flags import Property
from roamcast.cli.formats import Format
from roamcast.cli.lines import Lines
from roamcast.cli.pub import COMMAND as PUB
from roamcast.cli.running import exit_code
from roamcast.cli.sub import COMMAND as SUB
from roamcast.client import ConnectError, Notification, NotificationIdentity, Reason
from roamcast.errors import InputError
from roamcast.records import read_log


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with running_line(tmp_path_factory.mktemp("pair"), 2) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(Mosquitto(tmp_path_factory.mktemp("mosquitto"))) as started:
        yield started


@pytest.fixture(params=["pair", "mosquitto"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server | list[Server] = request.getfixturevalue(request.param)
    return found[0] if isinstance(found, list) else found


def command(
    *arguments: str, input: bytes = b"", to: Server | None = None
) -> subprocess.CompletedProcess[bytes]:
    where = ["-h", "127.0.0.1", "-p", str(to.port)] if to is not None else []
    return subprocess.run(
        [ROAMCAST, *arguments, *where], input=input, capture_output=True, timeout=DEADLINE_S, check=False
    )


class Subscriber:
    """`roamcast sub` as a process of its own, subscribed when it is here."""

    def __init__(self, to: Server, *arguments: str) -> None:
        at = to.log.stat().st_size
        self.process = subprocess.Popen(
            [ROAMCAST, "sub", "-h", "127.0.0.1", "-p", str(to.port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # A marker that is retained arrives as soon as the subscription stands.
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        assert self.first, (self.process.communicate(timeout=DEADLINE_S), to.log.read_bytes()[at:])

    def finish(self) -> tuple[list[str], str, int]:
        out, complaint = self.process.communicate(timeout=DEADLINE_S)
        return out.decode().splitlines(), complaint.decode(), self.process.returncode


def mark(topic: str, to: Server) -> None:
    assert command("pub", "-t", f"{topic}/marker", "-m", "marker", "-r", "-q", "1", to=to).returncode == 0


@pytest.mark.parametrize("version", ["5", "mqttv311"])
def test_lines_arrive(server: Server, version: str) -> None:
    topic = f"lines/{version}"
    mark(topic, server)
    subscriber = Subscriber(server, "-t", f"{topic}/#", "-q", "2", "-C", "3001", "-W", "25", "-V", version)
    lines = "".join(f"line {number}\n\n" for number in range(2999)) + "last"
    published = command(
        "pub", "-t", f"{topic}/x", "-l", "-q", "2", "-V", version, input=lines.encode(), to=server
    )
    assert (published.returncode, published.stderr) == (0, b"")
    found, complaint, code = subscriber.finish()
    assert found == [*(f"line {number}" for number in range(2999)), "last"]
    assert (complaint, code) == ("", 0)


def test_one_message_in_many_ways(pair: list[Broker], tmp_path: Path) -> None:
    broker = pair[0]
    mark("ways", broker)
    subscriber = Subscriber(broker, "-t", "ways/#", "-C", "8", "-W", "25", "-F", "%t %q %r %l %P %C|%p")
    file = tmp_path / "payload"
    file.write_bytes(b"from a file")
    ways = [
        ["-m", "given", "-q", "1", "--property", "pm10=57", "--property", "pm10=58"],
        ["-f", str(file), "-D", "publish", "user-property", "unit", "ug", "-q", "2"],
        ["-s", "-D", "PUBLISH", "content-type", "text/plain"],
        ["-n"],
        ["-m", "thrice", "--repeat", "3", "--repeat-delay", "0.01", "--content-type", "a/b"],
    ]
    for way in ways:
        result = command("pub", "-t", "ways/x", *way, input=b"all of it\n", to=broker)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    found, _, code = subscriber.finish()
    assert code == 0
    # The subscription is of QoS 0, whatever the publisher's; the third payload ends with a line break.
    expected = ["5 pm10:57 pm10:58 |given", "11 unit:ug |from a file", "10  text/plain|all of it"]
    expected += ["0  |", *["6  a/b|thrice"] * 3]
    assert [line for line in found if line] == [f"ways/x 0 0 {line}" for line in expected]


def test_json_where_and_records(pair: list[Broker], tmp_path: Path) -> None:
    broker = pair[0]
    command("pub", "-t", "where/x", "-m", "marker", "-r", "-q", "1", "--property", "pm10=99", to=broker)
    subscriber = Subscriber(
        broker, "-t", "where/+", "--where", "pm10 > 50", "-q", "1", "-C", "3", "-W", "25", "--json",
        "--records", str(tmp_path / "log"), "-i", "witness", "--subscription-identifier", "7",
    )  # fmt: skip
    assert json.loads(subscriber.first)["retain"] is True
    for level in ("40", "60"):
        command("pub", "-t", "where/x", "-m", level, "-q", "1", "--property", f"pm10={level}", to=broker)
    payload = b'{"pm10": 70}'
    command(
        "pub",
        "-t",
        "where/y",
        "-s",
        "--content-type",
        "application/json",
        "-q",
        "1",
        input=payload,
        to=broker,
    )
    lines, complaint, code = subscriber.finish()
    assert (complaint, code) == ("", 0)
    first, second = map(json.loads, lines)
    assert (first["topic"], first["payload"], first["qos"], first["retain"]) == ("where/x", "60", 1, False)
    assert (first["properties"], first["subscription_identifiers"]) == ([["pm10", "60"]], [7])
    assert second["content_type"] == "application/json"
    rows = [row for row in read_log(tmp_path / "log") if row.kind == "delivered"]
    # What was retained has no number: others judge it, and it is in the log for people alone.
    numbered = [row for row in rows if row.number is not None]
    assert len(numbered) == 2
    assert first["identity"]["publisher"] == numbered[0].publisher


def test_a_session_is_kept_and_shared_out(pair: list[Broker]) -> None:
    """Three runs of one client at two brokers: together they print everything once."""
    one, other = pair
    lasting = ["-t", "kept", "-q", "2", "-i", "keeper", "-c"]
    begun = command("sub", *lasting, "-W", "0.5", to=one)
    assert (begun.returncode, begun.stderr) == (27, b"roamcast: timed out after 0.5 s\n")
    lines = "".join(f"{number}\n" for number in range(10))
    assert command("pub", "-t", "kept", "-q", "2", "-l", input=lines.encode(), to=one).returncode == 0
    first = command("sub", *lasting, "-C", "4", "-W", "25", to=other)
    second = command("sub", *lasting, "-C", "6", "-W", "25", to=one)
    assert (first.stdout + second.stdout).decode() == lines


def test_roaming(pair: list[Broker]) -> None:
    stops = ",".join(f"{broker.id}={broker.address}" for broker in pair)
    mark("roam", pair[0])
    roaming = ["--roam", stops, "--every", "0.2", "--proclaim", "-i", "roamer", "-c"]
    subscriber = Subscriber(pair[0], "-t", "roam/#", "-q", "2", "-C", "2001", "-W", "28", *roaming)
    lines = "".join(f"{number}\n" for number in range(2000)).encode()
    back = ",".join(broker.address for broker in reversed(pair))
    publisher = ["-t", "roam/x", "-q", "2", "-l", "--roam", back, "--every", "0.3", "-i", "publisher", "-c"]
    with subprocess.Popen(
        [ROAMCAST, "pub", *publisher], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines[:1000])
        process.stdin.flush()
        # The rest comes when both have been elsewhere.
        wait_for_move(
            subscriber.process, rb"roamcast: move 2: at b0=127.0.0.1:\d+ after \d+ ms; [\d,]+ printed\n"
        )
        wait_for_move(process, rb"roamcast: move 1: at 127.0.0.1:\d+ after \d+ ms; \d+ lines read\n")
        process.stdin.write(lines[1000:])
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    found, _, code = subscriber.finish()
    assert code == 0
    assert "".join(f"{line}\n" for line in found).encode() == lines


def wait_for_move(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stderr is not None
    while not re.fullmatch(line, said := process.stderr.readline()):
        assert said, "it has ended"


def test_refusals_are_one_line() -> None:
    port = free_port()
    for arguments in (["sub", "-t", "x"], ["pub", "-t", "x", "-m", "y"], ["pub", "-t", "x", "-l"]):
        result = command(*arguments, "-h", "127.0.0.1", "-p", str(port))
        assert result.returncode == 1
        expected = f"roamcast: 127.0.0.1:{port}: connection refused: nobody listens there\n"
        assert result.stderr.decode() == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pub", "-t", "x"], "give one of -m MESSAGE, -f FILE, -l (lines), -s (standard input) and -n"),
        (["pub", "-t", "x", "-m", "a", "-n"], "give one of -m"),
        (["pub", "-t", "x", "-f", "absent"], "-f absent: cannot be read (No such file or directory)"),
        (["pub", "-t", "x", "-m", "a", "--property", "p"], "--property p: valid is NAME=VALUE"),
        (
            ["pub", "-t", "x", "-m", "a", "-D", "publish", "user-propety", "a", "b"],
            "did you mean 'user-property'",
        ),
        (["pub", "-t", "x", "-m", "a", "-c"], "-c keeps a session, which needs a client id"),
        (["pub", "-t", "x", "-m", "a", "-V", "3"], "-V 3: valid is 5 (or mqttv5) or 311 (or mqttv311)"),
        (["pub", "-t", "x", "-m", "a", "--cafile", "absent"], "cafile absent: cannot be used"),
        (["sub", "-t", "x", "-v", "--json"], "give one of -v, -F FORMAT and --json"),
        (["sub", "-t", "x", "-F", "%z"], "-F %z: there is no %z; valid are %p %t"),
        (["sub", "-t", "x", "--roam", "127.0.0.1:1,127.0.0.1:2", "--proclaim"], "--proclaim needs the ids"),
        (["sub", "-t", "x", "--roam", ","], "no address"),
        (["sub", "-t", "x", "-q", "3"], "-q 3: valid is a whole number from 0 to 2"),
        (["sub"], "-t"),
        (["pub", "-m", "x"], "no topic: give -t TOPIC, or a URL with one (-L)"),
        (["pub", "-t", "x", "-m", "a", "--proxy", "socks5h://x"], "has no --proxy: no SOCKS proxy is used"),
        (["pub", "-t", "x", "-m", "a", "--retian"], "has no option --retian; did you mean '--retain'?"),
        (["pub", "-t", "x", "-m"], "option '-m' requires an argument"),
        (["pub", "-t", "x", "-m", "a", "b"], "'roamcast pub': unexpected argument 'b'"),
        (
            ["pub", "-L", "mqtt://host", "-m", "a"],
            "-L: valid is mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC",
        ),
        (["pub", "-t", "x", "-m", "a", "--will-payload", "p"], "a will needs a topic: give --will-topic"),
        (["pub", "-t", "x", "-m", "a", "-x", "9"], "-x keeps the session for a while: give -c and -i too"),
        (["pub", "-t", "x", "-m", "a", "--tls", "--ciphers", "none"], "--ciphers none: cannot be used"),
        (["pub", "-t", "x", "-m", "a", "--capath", "absent"], "--capath absent: cannot be used"),
        (["pub", "-t", "x", "-m", "a", "-V", "311", "--property", "a=b"], "MQTT 3.1.1 has no properties"),
        (["sub", "-t", "x", "-T", "a/#/b"], "-T a/#/b: "),
        (["sub", "-t", "x", "-F", "%"], "there is no %; valid are"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), arguments) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_bad_filters_are_refused_before_they_are_sent(pair: list[Broker]) -> None:
    for arguments in (
        ["sub", "-t", "a/#/b"],
        ["sub", "-t", "a", "--where", "pm10 >"],
        ["pub", "-t", "a/#", "-n"],
    ):
        result = command(*arguments, to=pair[0])
        assert result.returncode == 2
        assert result.stderr.count(b"\n") == 1


def test_help_is_only_the_long_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pub", "sub"):
        assert run(build_app(), [name, "--help"]) == 0
        text = capsys.readouterr().out
        assert re.search(r"-h, --host", text)
        assert f"roamcast {name} -t" in text
        assert run(build_app(), [name, "-h"]) == 2
        capsys.readouterr()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_stops_when_told(pair: list[Broker], number: signal.Signals, code: int) -> None:
    mark("stop", pair[0])
    subscriber = Subscriber(pair[0], "-t", "stop/#")
    os.kill(subscriber.process.pid, number)
    out, _, found = subscriber.finish()
    assert (out, found) == ([], code)


def test_a_reader_that_goes_away_ends_it(pair: list[Broker]) -> None:
    mark("pipe", pair[0])
    subscriber = Subscriber(pair[0], "-t", "pipe/#", "-W", "25")
    assert subscriber.process.stdout is not None
    subscriber.process.stdout.close()
    end = time.monotonic() + DEADLINE_S
    while subscriber.process.poll() is None and time.monotonic() < end:
        command("pub", "-t", "pipe/x", "-m", "anyone?", to=pair[0])
    assert subscriber.process.wait(timeout=DEADLINE_S) == 141
    assert subscriber.process.stderr is not None
    with subscriber.process.stderr as complaint:
        assert complaint.read() == b""


def test_the_words_of_mosquitto() -> None:
    given = (
        "-t x -D publish user-property a b -D connect session-expiry-interval 9 --property c=d -p1884 -rl "
        "--property publish content-type t/x --qos=2 -m -dash -P= -x -1"
    )
    values = PUB.parse(given.split())
    assert values is not None
    assert values.property == [
        Property("publish", "user-property", ("a", "b")),
        Property("connect", "session-expiry-interval", 9),
        Property("publish", "user-property", ("c", "d")),
        Property("publish", "content-type", "t/x"),
    ]
    assert (values.port, values.retain, values.stdin_line, values.qos) == (1884, True, True, 2)
    assert (values.message, values.pw, values.session_expiry_interval) == ("-dash", "=", 0xFFFF_FFFF)
    for wrong in ("-D", "-D publish", "-D publish user-property a", "-D publish content-type"):
        with pytest.raises(InputError, match=r"valid is -D|no such property"):
            PUB.parse(wrong.split())


def test_what_is_not_there_is_said() -> None:
    for command in (PUB, SUB):
        for flag, instead in command.absent.items():
            with pytest.raises(InputError, match=f"has no {flag}: {re.escape(instead)}"):
                command.parse([flag, "x"])


def shown(format: str, *several: Notification, **options: bool) -> bytes:
    return Format(format, ends_line=False, **options).show_all(several)


def test_formats() -> None:
    one = Notification(
        "a/b", b"\x00\xffhi", 2, True, True, (("k", "v"), ("k", "w")), "text/x", "back", b"\xfe", 30, 1, (7,),
        identity=NotificationIdentity("p", 1, 2),
    )  # fmt: skip
    found = shown("%t|%x|%X|%l|%q|%r|%d|%C|%R|%P|%E|%F|%S|%A|%%|@@|\\t\\\\\\q|ä", one)
    assert found.decode() == "a/b|00ff6869|00FF6869|4|2|1|1|text/x|back|k:v k:w|30|1|7||%|@|\t\\\\q|ä"
    assert (shown("%p", one), shown("%D", one)) == (b"\x00\xffhi", b"\xfe")
    assert shown("%6t|%-6t|%05l|%2.2C|%-06l|%010x", one) == b"   a/b|a/b   |00004|te|4     |0000ff6869"
    described = json.loads(shown("", one, is_json=True))
    assert described["payload_base64"] == "AP9oaQ=="
    assert described["identity"] == {"publisher": "p", "incarnation": 1, "number": 2}
    as_mosquitto = json.loads(shown("%j", one))
    assert (as_mosquitto["retain"], as_mosquitto["properties"]["content-type"]) == (1, "text/x")
    assert as_mosquitto["properties"]["user-properties"] == {"k": "w"}
    assert json.loads(shown("%J", Notification("a", b'{"x": [1]}')))["payload"] == {"x": [1]}
    assert json.loads(shown("%J", Notification("a", b"no")))["payload"] is None
    assert shown("%j", one, is_pretty=True).count(b"\n") > 5
    assert abs(float(shown("%U", one)) - time.time()) < 5
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT.*", shown("%I", one))
    assert re.fullmatch(rb"\d{4}-\d\d\.\d{9}", shown("@Y-@m.@N", one))
    two = [Notification("a", b"x"), Notification("b", b"")]
    assert Format("%p").show_all(two) == b"x\n\n"
    assert Format("%t %p").show_all(two) == b"a x\nb \n"
    assert Format("%t", ends_line=False).show_all(two) == b"ab"


def test_a_subscriber_that_says_where_it_is(tmp_path: Path) -> None:
    graph = tmp_path / "rooms.txt"
    graph.write_text("lobby corridor\ncorridor office\n")
    house = Broker(tmp_path, "house", None, "--set", f"location.movement_graph={graph}")
    near = ("sub", "-t", "news/#", "--where", "location WITHIN 1 OF myloc", "-C", "1", "-W", "20", "--at")
    with running(house) as broker:
        for room in ("office", "corridor"):
            kept = ("-t", f"news/{room}", "-r", "-q", "1", "-m", room, "--property", f"location={room}")
            assert command("pub", *kept, to=broker).returncode == 0
        assert command(*near, "lobby", to=broker).stdout == b"corridor\n"
        refused = command(*near, "cellar", to=broker)
    assert refused.returncode == 1
    assert b"location 'cellar' is not in the movement graph" in refused.stderr
    assert refused.stderr.count(b"\n") == 1


def test_what_is_kept_is_shown_left_out_and_removed(
    mosquitto: Mosquitto, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The flags of mosquitto_sub for retained messages, topics and subscriptions, within this process."""

    def shown(name: str, *words: str) -> tuple[list[str], int]:
        command = PUB if name == "pub" else SUB
        code = command.run([*words, "-p", str(mosquitto.port), "-h", "127.0.0.1", "--quiet"])
        return capsysbinary.readouterr().out.decode().split("|"), code

    for name in ("one", "two", "three"):
        assert shown("pub", "-L", f"mqtt://127.0.0.1:{mosquitto.port}/kept/{name}", "-rn") == ([""], 0)
        assert shown("pub", "-t", f"kept/{name}", "-m", name, "-r", "-q", "1")[1] == 0
    everything = ("sub", "-t", "kept/#", "-F", "%p|", "-N", "-W", "30", "-C")
    assert sorted(shown(*everything, "3")[0]) == ["", "one", "three", "two"]
    assert sorted(shown(*everything, "2", "-T", "+/two")[0]) == ["", "one", "three"]
    assert shown(*everything, "1", "-R", "-W", "0.2") == ([""], 27)
    removing = ("--retained-only", "--remove-retained", "-T", "+/two")
    assert sorted(shown(*everything, "2", *removing)[0]) == ["", "one", "three"]
    assert shown(*everything, "1") == (["two", ""], 0)
    kept = ("sub", "-i", "flagged", "-c", "-q", "1", "-W", "30", "-F", "%p|", "-N")
    assert shown(*kept, "-t", "later", "-E") == ([""], 0)
    assert shown("pub", "-t", "later", "-m", "x", "-q", "1", "-I", "some-")[1] == 0
    assert shown(*kept, "-t", "never", "-C", "1") == (["x", ""], 0)
    assert shown(*kept, "-U", "later", "-E") == ([""], 0)
    assert shown("pub", "-t", "later", "-m", "y", "-q", "1", "-A", "127.0.0.1", "-M", "3")[1] == 0
    assert shown(*kept, "-t", "never", "-W", "0.2") == ([""], 27)


def test_what_is_sent_and_received_is_told(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    assert PUB.run(["-p", str(mosquitto.port), "-t", "told", "-m", "x", "-q", "2", "-d", "-i", "teller"]) == 0
    told = [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()]
    packets = ["sending CONNECT", "received CONNACK", "sending PUBLISH", "received PUBREC", "sending PUBREL"]
    packets += ["received PUBCOMP", "sending DISCONNECT"]
    assert told == [f"roamcast: {packet}" for packet in packets]


def test_a_refused_connection_has_the_code_of_its_reason() -> None:
    refused = ConnectError("no", Reason.NOT_AUTHORIZED)
    assert (exit_code(refused, 5), exit_code(refused, 4)) == (0x87, 5)
    assert exit_code(ConnectError("nobody there"), 5) == 1


def test_lines_come_as_they_are_and_as_soon_as_they_are_there() -> None:
    async def read() -> list[list[bytes]]:
        source, sink = os.pipe()
        lines, found = Lines(source), []
        os.write(sink, b"a\r\n\n \nhal")
        async for burst in lines.bursts():
            found.append(burst)
            if len(found) == 1:
                os.write(sink, b"f")
                asyncio.get_running_loop().call_later(0.01, os.close, sink)
        os.close(source)
        assert lines.count == 3
        return found

    assert asyncio.run(read()) == [[b"a\r", b" "], [b"half"]]


def test_starting_a_client_loads_no_other_command() -> None:
    code = (
        "import sys; from roamcast.cli import main; sys.argv = 'roamcast pub -t x -m y -p 1'.split(); "
        "assert main() == 1; "
        "print([name for name in ('typer', 'lark', 'uvloop', 'rich', 'roamcast.filters', "
        "'roamcast.cli.app') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.stdout == "[]\n"
