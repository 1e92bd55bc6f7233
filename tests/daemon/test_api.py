"""The HTTP API over real broker processes: what is told, to whom, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.daemon.brokers import ROAMCAST, BrokerProcess, MqttClient, free_port, wait_until

from roamcast.daemon.api import STREAM_BYTES_MAX, Page
from roamcast.daemon.gate import Reader
from roamcast.daemon.http import TooSlow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TOKEN = "a token that only the tests know"
READ_TOKEN = "another one, which may only read"


def configured(folder: Path) -> str:
    """A file with users, readers, operators and tokens."""
    users = folder / "users"
    if not users.exists():
        for name in ("olga", "rita", "mallory"):
            command = [str(ROAMCAST), "user", "add", name, "--file", str(users), "--password-stdin"]
            subprocess.run(command, input=f"{name}'s password", text=True, check=True, timeout=60)
    digests = [hashlib.sha256(token.encode()).hexdigest() for token in (TOKEN, READ_TOKEN)]
    config = folder / "view.toml"
    config.write_text(f'''
[access]
users = "{users}"
anonymous = "loopback"
[view]
readers = ["rita"]
operators = ["ol*"]
latitude = 43.26
longitude = -2.93
[[view.token]]
name = "tests"
sha256 = "{digests[0]}"
may = "operate"
[[view.token]]
name = "reading"
sha256 = "{digests[1]}"
''')
    return str(config)


class Asker:
    """Requests to one broker, with what it has proved."""

    def __init__(self, broker: BrokerProcess, token: str = "", **headers: str) -> None:
        self.broker = broker
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.headers |= {name.replace("_", "-"): value for name, value in headers.items()}

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.http_port, timeout=60)
        headers = dict(self.headers)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode(), answer.headers

    def get(self, path: str) -> Any:
        status, value, _ = self.ask("GET", path)
        assert status == 200, (status, value)
        return value


class Events:
    """What a page hears."""

    def __init__(self, broker: BrokerProcess, token: str = "", cookie: str = "") -> None:
        self.connection = socket.create_connection(("127.0.0.1", broker.http_port), timeout=60)
        proof = f"Authorization: Bearer {token}\r\n" if token else f"Cookie: {cookie}\r\n"
        self.connection.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{proof}\r\n".encode())
        self.events: list[tuple[str, Any]] = []
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        with self.connection.makefile("rb") as lines:
            name = ""
            for line in lines:
                text = line.decode().rstrip("\r\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    self.events.append((name, json.loads(text.removeprefix("data: "))))

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.events if name == kind]

    def clients(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for value in self.of("clients"):
            found |= {one["id"]: one for one in value["clients"]}
            for id in value["gone"]:
                found.pop(id, None)
        return found

    def close(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


Chain = tuple[BrokerProcess, BrokerProcess, BrokerProcess]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Three brokers in a row; the operator's broker is at one end."""
    folder = tmp_path_factory.mktemp("chain")
    config, port, other = configured(folder), free_port(), free_port()
    with ExitStack() as stack:
        a = BrokerProcess(folder, "a", link_port=port, config=config)
        stack.callback(a.stop)
        b = BrokerProcess(folder, "b", link_port=other, peers={"a": port})
        stack.callback(b.stop)
        c = BrokerProcess(folder, "c", peers={"b": other})
        stack.callback(c.stop)
        for one, peer in ((a, "b"), (b, "c"), (c, "b")):
            one.wait_for_link(peer)
        yield a, b, c


def test_one_broker_tells_of_the_whole_network(chain: Chain) -> None:
    a, b, c = chain
    operator, reader = Asker(a, TOKEN), Asker(a)
    car = MqttClient("car", c.port)
    car.subscribe("road/+")
    network = operator.get("/api/v1/network")
    assert [(one["id"], one["up"], one["sessions"]) for one in network["brokers"]] == [
        ("a", True, 0), ("b", True, 0), ("c", True, 1),
    ]  # fmt: skip
    assert (network["brokers"][0]["lat"], network["brokers"][0]["lon"]) == (43.26, -2.93)
    assert [(one["a"], one["b"], one["up"]) for one in network["links"]] == [
        ("a", "b", True),
        ("b", "c", True),
    ]
    assert network["served_by"] == "a"
    assert not network["alerts"]

    seen = operator.get("/api/v1/clients")
    assert [(one["id"], one["broker"], one["attached"]) for one in seen["clients"]] == [("car", "c", True)]
    hidden = reader.get("/api/v1/clients")["clients"][0]["id"]
    assert "car" not in hidden, "readers see pseudonyms"
    assert reader.ask("GET", "/api/v1/clients/car")[0] == 404, "a pseudonym cannot be found by the name"
    detail = operator.get("/api/v1/clients/car")
    assert detail["subscriptions"] == [{"filter": "road/+", "qos": 1, "selector": None, "group": None}]
    assert detail["protocol"] == "MQTT 5"
    assert reader.get(f"/api/v1/clients/{hidden}")["subscriptions"] == detail["subscriptions"]
    assert "car is attached to broker c." in operator.get("/api/v1/explain/car")["text"]

    sensor = MqttClient("sensor", b.port)
    car.leave()
    sensor.publish("road/1", b"for later")
    wait_until(
        lambda: bool(operator.get("/api/v1/clients/car")["queued"]),
        lambda: str(operator.get("/api/v1/clients/car")),
    )
    car.connect(a.port)
    car.wait_for_messages(1)
    wait_until(lambda: bool(operator.get("/api/v1/handoffs")["handoffs"]), lambda: "no handoff is told")
    handoff = operator.get("/api/v1/handoffs")["handoffs"][0]
    assert (handoff["client"], handoff["from"], handoff["to"], handoff["moved"]) == ("car", "c", "a", 1)
    assert 0 < handoff["duration_ms"] < 30_000
    moves = operator.get("/api/v1/clients/car")["moves"]
    assert [(move["from"], move["to"]) for move in moves] == [("c", "a")]
    figures = operator.get("/api/v1/network")["figures"]
    assert (figures["delivered"], figures["lost"], figures["repeated"]) == (1, 0, 0)
    assert operator.get("/api/v1/clients?search=AR&broker=a&limit=1")["total"] == 1
    assert operator.get("/api/v1/clients?search=bus")["clients"] == []
    first = operator.get("/api/v1/clients?limit=1")
    assert first["next"] == "car"
    assert [one["id"] for one in operator.get("/api/v1/clients?after=car")["clients"]] == ["sensor"]
    detail = operator.get("/api/v1/brokers/b")
    assert detail["status"]["broker"] == "b"
    assert detail["configuration"]["link"]["secret"] == "(hidden)"
    car.leave()
    sensor.leave()


def test_a_page_hears_of_changes(chain: Chain) -> None:
    a, b, c = chain
    first = MqttClient("bus", b.port)
    events = Events(a, TOKEN)
    wait_until(lambda: "bus" in events.clients(), lambda: str(events.events))
    first.leave()
    first.connect(c.port)
    wait_until(lambda: bool(events.of("handoffs")), lambda: str(events.events))
    assert events.of("handoffs")[0]["handoffs"][0]["client"] == "bus"
    wait_until(lambda: events.clients().get("bus", {}).get("broker") == "c", lambda: str(events.events))
    wait_until(lambda: len(events.of("network")) >= 2, lambda: str(events.events))
    events.close()
    passing = MqttClient("passing", b.port, lasting=False)
    events = Events(c, "")
    wait_until(lambda: len(events.clients()) >= 2, lambda: str(events.events))
    before = len(events.clients())
    passing.leave()
    wait_until(lambda: len(events.clients()) == before - 1, lambda: str(events.events))
    assert "bus" not in json.dumps(events.events)
    events.close()
    first.leave()


def test_operators_act_and_others_do_not(chain: Chain) -> None:
    a, _, c = chain
    operator = Asker(a, TOKEN)
    tram = MqttClient("tram", c.port)
    wait_until(lambda: "tram" in json.dumps(operator.get("/api/v1/clients")), lambda: "not seen")
    kick = ("POST", "/api/v1/actions/kick", {"client": "tram"})
    assert Asker(a).ask(*kick)[0] == 403
    assert Asker(a, READ_TOKEN).ask(*kick)[0] == 403
    assert Asker(a, "guessed").ask(*kick)[0] == 401
    status, answer, _ = operator.ask(*kick)
    assert (status, answer) == (
        200,
        {"done": True, "text": "tram was disconnected from c; its session stays"},
    )
    wait_until(lambda: bool(tram.disconnects), lambda: "not disconnected")
    assert tram.disconnects[0][0] == 0x98
    c.wait_for("client tram is disconnected by an operator behind b")
    a.wait_for("operator tests .* orders: kick client='tram'")
    tram.paho.loop_stop()
    status, text, _ = operator.ask("POST", "/api/v1/actions/drain", {"broker": "c", "to": "b"})
    assert status == 400
    assert 'add "operate" to may of its [[peer]] b' in text
    assert operator.ask("POST", "/api/v1/actions/drain", {"broker": "nobody"})[0] == 400
    assert operator.ask("POST", "/api/v1/actions/explode", {})[0] == 404
    assert operator.ask("POST", "/api/v1/actions/kick", {"clients": "tram"})[0] == 400
    assert operator.ask("GET", "/api/v1/actions/kick")[0] == 405


def test_users_log_in(chain: Chain) -> None:
    a = chain[0]
    asker = Asker(a)
    assert asker.get("/api/v1/me") == {
        "user": None, "may_operate": False, "login_needed": False, "pseudonyms": True,
    }  # fmt: skip
    for name, password, wanted in (
        ("olga", "wrong", 401),
        ("nobody", "x", 401),
        ("mallory", "mallory's password", 403),
        ("rita", "rita's password", 200),
        ("olga", "olga's password", 200),
    ):
        status, value, headers = asker.ask("POST", "/api/v1/login", {"user": name, "password": password})
        assert status == wanted, (name, value)
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert value["may_operate"]
    cookie = cookie.partition(";")[0]
    olga, events = Asker(a, Cookie=cookie), Events(a, cookie=cookie)
    wait_until(lambda: bool(events.events), lambda: "no event")
    assert olga.get("/api/v1/me")["user"] == "olga"
    assert olga.ask("POST", "/api/v1/actions/forget", {"broker": "zz"})[0] == 400, "there is no such broker"
    assert olga.ask("POST", "/api/v1/logout", {})[0] == 200
    assert olga.get("/api/v1/me")["user"] is None
    wait_until(lambda: not events.reading.is_alive(), lambda: "what only olga may see goes on")
    events.connection.close()
    a.wait_for("login of user 'olga' from 127.0.0.1 failed")


def test_foreign_pages_and_odd_requests_are_refused(chain: Chain) -> None:
    a = chain[0]
    for headers, wanted in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://127.0.0.1:{a.http_port}"}, 200),
        ({"X_Forwarded_For": "203.0.113.7"}, 401),
    ):
        assert Asker(a, **headers).ask("GET", "/api/v1/network")[0] == wanted, headers
    text = Asker(a, TOKEN, Content_Type="text/plain").ask("POST", "/api/v1/actions/kick", b"{}")
    assert text[0] == 415, "a page of another site could send that"
    asker = Asker(a)
    for limit in ("0", "x", "-1", "10001", "000000001" * 2, "0" * 5000):
        assert asker.ask("GET", f"/api/v1/clients?limit={limit}")[0] == 400, limit
    for path in ("/api/v1/clients?%ff=1", "/%ff"):
        assert asker.ask("GET", path)[0] == 400, path
    for path in ("/../../etc/passwd", "/assets/../../daemon/http.py", "/api/v1/", "/api/v1/nothing", "/x"):
        assert asker.ask("GET", path)[0] == 404, path
    assert asker.ask("POST", "/api/v1/login", b"x" * 100_000)[0] == 413
    assert asker.ask("POST", "/api/v1/login", b"{")[0] == 400
    assert asker.ask("DELETE", "/api/v1/network")[0] == 405
    _, _, told = asker.ask("GET", "/api/v1/network")
    assert told["X-Content-Type-Options"] == "nosniff"
    assert told["X-Frame-Options"] == "DENY"
    assert "default-src 'none'" in told["Content-Security-Policy"]
    assert "unsafe" not in told["Content-Security-Policy"]


def test_the_description_names_what_is_told(chain: Chain) -> None:
    asker = Asker(chain[0])
    described = asker.get("/api/v1/openapi.json")
    schemas = described["components"]["schemas"]

    def check(value: Any, schema: dict[str, Any], where: str) -> None:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            if value is not None:
                check(value, schema["anyOf"][0], where)
        elif schema.get("type") == "array":
            for one in value:
                check(one, schema["items"], where)
        elif "properties" in schema:
            assert not schema.get("required", []) or set(schema["required"]) == set(value), where
            for name, one in value.items():
                check(one, schema["properties"][name], f"{where}.{name}")
        elif "type" in schema:
            kinds: dict[str, Any] = {
                "number": (int, float),
                "integer": int,
                "string": str,
                "boolean": bool,
                "object": dict,
            }
            assert isinstance(value, kinds[schema["type"]]), f"{where}: {value!r}"

    hidden = MqttClient("described", chain[1].port)
    wait_until(lambda: asker.get("/api/v1/clients")["total"] > 0, lambda: "nobody is seen")
    client = asker.get("/api/v1/clients")["clients"][0]["id"]
    for path, what in described["paths"].items():
        if "get" in what and path != "/api/v1/events":
            value = asker.get(
                path.replace("{id}", "a" if "brokers" in path else client).replace("{client}", client)
            )
            schema = what["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            check(value, schema, path)
    hidden.leave()


def command(broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROAMCAST), *words, "--data", str(broker.data)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def told(broker: BrokerProcess, *words: str) -> Any:
    done = command(broker, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_operators_commands_tell_of_the_whole_network(chain: Chain) -> None:
    a, b, c = chain
    van = MqttClient("van\x1b[2J", c.port)
    van.subscribe("lane/+")
    lorry = MqttClient("lorry", b.port)
    lorry.subscribe("$share/g/lane/#", qos=2)
    lorry.leave()
    van.publish("lane/1", b"x")
    wait_until(
        lambda: [one["queued"] for one in told(a, "sessions", "--search", "LORRY")["clients"]] == [1],
        lambda: str(told(a, "sessions")),
    )
    assert [(one["id"], one["broker"]) for one in told(a, "clients", "--broker", "c")["clients"]] == [
        ("van\x1b[2J", "c")
    ]
    assert "lorry" not in json.dumps(told(a, "clients"))
    assert [one["id"] for one in told(a, "sessions", "--queued", "1")["clients"]] == ["lorry"]
    found = told(a, "subscriptions", "--topic", "lane/1")
    assert found["silent"] == []
    assert [(one["client"], one["broker"], one["filter"], one["qos"], one["group"])
            for one in found["subscriptions"]] == [
        ("lorry", "b", "$share/g/lane/#", 2, "g"), ("van\x1b[2J", "c", "lane/+", 1, None),
    ]  # fmt: skip
    assert not told(a, "subscriptions", "--topic", "elsewhere", "--search", "van")["subscriptions"]
    assert [(one["a"], one["b"]) for one in told(c, "links")["links"]] == [("a", "b"), ("b", "c")]
    assert told(c, "links", "--down")["links"] == []
    assert [one["id"] for one in told(a, "top")["brokers"]] == ["a", "b", "c"]
    shown = command(a, "clients").stdout
    assert "\x1b" not in shown, "a client id must not move the cursor"
    assert r"van\x1b[2J" in shown
    assert "links: 2 of 2 are up" in command(a, "status").stdout
    assert command(a, "top").returncode == 0
    assert told(a, "kick", "van\x1b[2J")["text"].endswith("was disconnected from c; its session stays")
    wait_until(lambda: bool(van.disconnects), lambda: "not disconnected")
    van.paho.loop_stop()
    refused = command(a, "kick", "nobody")
    assert refused.returncode == 2
    assert "no broker that can be asked has a session of 'nobody'" in refused.stderr
    mistyped = command(a, "clients", "--broker", "zz")
    assert mistyped.returncode == 2
    assert "--broker zz: there is no such broker; known are: a, b, c" in mistyped.stderr


def test_alerts_and_dashboard_name_metrics_that_exist(chain: Chain) -> None:
    text = chain[0].get("/metrics")[1]
    known = set(re.findall(r"^# TYPE (\w+) \w+$", text, re.MULTILINE)) | {"up"}
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20
    for expression in asked:
        names = re.findall(r"\b(?:roamcast|process)_\w+", expression) or re.findall(r"\bup\b", expression)
        assert names, expression
        for name in names:
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, family} & known, f"{name} is not among the metrics"
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.slow
def test_nothing_is_computed_when_nobody_looks(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        a = BrokerProcess(tmp_path, "a", link_port=port)
        stack.callback(a.stop)
        b = BrokerProcess(tmp_path, "b", peers={"a": port})
        stack.callback(b.stop)
        a.wait_for_link("b")
        assert b.metric("roamcast_reports_total") == 0
        assert len(json.loads(a.get("/api/v1/network")[1])["brokers"]) == 2
        assert b.metric("roamcast_reports_total") > 0
        made: list[float] = []

        def is_quiet() -> bool:
            made.append(b.metric("roamcast_reports_total"))
            return len(made) > 100 and made[-1] == made[-100]

        wait_until(is_quiet, lambda: f"reports go on: {made[-5:]}")


def test_a_page_that_does_not_keep_up_is_dropped() -> None:
    reader = Reader("olga", may_read=True, sees_names=True)
    page = Page(reader, str, lambda: reader)

    async def story() -> None:
        page.put(b"x" * STREAM_BYTES_MAX)
        page.put(b"y")
        page.put(b"never")
        with pytest.raises(TooSlow):
            await page.next()

    asyncio.run(story())


def test_pages_are_counted_and_bounded(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "a", "view.streams_max=2", config=configured(tmp_path))
    try:
        pages = [Events(broker) for _ in range(2)]
        for page in pages:
            wait_until(lambda page=page: bool(page.events), lambda: "no event")  # type: ignore[misc]
        assert Asker(broker).ask("GET", "/api/v1/events")[0] == 503
        operator = Events(broker, TOKEN)
        wait_until(lambda: bool(operator.events), lambda: "strangers keep an operator out")
        wait_until(lambda: not pages[0].reading.is_alive(), lambda: "there are too many streams")
        pages[0].connection.close()
        operator.close()
        wait_until(lambda: broker.metric("roamcast_http_streams") == 1, lambda: broker.get("/metrics")[1])
        pages[1].close()
    finally:
        broker.stop()


def test_beyond_loopback_nobody_reads_without_a_login(tmp_path: Path) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    config = tmp_path / "view.toml"
    config.write_text(f'[view]\nenabled = true\n[[view.token]]\nname = "x"\nsha256 = "{digest}"\n')
    broker = BrokerProcess(tmp_path, "a", "metrics.address=0.0.0.0", config=str(config))
    try:
        assert Asker(broker).ask("GET", "/api/v1/network")[0] == 401
        assert Asker(broker).get("/api/v1/me")["login_needed"]
        assert Asker(broker, TOKEN).get("/api/v1/network")["served_by"] == "a"
    finally:
        broker.stop()
    config.write_text('[view]\nenabled = true\n[metrics]\nenabled = true\naddress = "0.0.0.0"\n')
    done = subprocess.run(
        [str(ROAMCAST), "broker", "--config", str(config), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nobody could log in" in done.stderr
