"""The page before real brokers: three processes, 200 roaming clients, a kill -9, and an operator."""

import random
import select
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.daemon.brokers import ROAMCAST, BrokerProcess, free_port, wait_until
from tests.web.browser import NewScreen, Screen, needs_chromium

from roamcast.bench.mqtt_load import LoadConnection
from roamcast.bench.processes import BenchFailed
from roamcast.mqtt.codec.packets import Puback, Publish

pytestmark = [pytest.mark.slow, needs_chromium]

CLIENTS = 200
VISIBLE_MS = 1_000
PASSWORD = "olga's password"


class Roamers:
    """Clients with lasting sessions that change their broker one after the other."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.moves = 0
        self._random = random.Random(1)
        self._connections: dict[str, LoadConnection] = {}
        self._is_over = threading.Event()
        for number in range(CLIENTS):
            name = f"car-{number:03d}"
            connection = self._connections[name] = self._attach(name, brokers[number % len(brokers)])
            connection.subscribe([f"road/{number % 10}"], 1)
        self._publisher = self._attach("station", brokers[0])
        self._thread = threading.Thread(target=self._roam, daemon=True)
        self._thread.start()

    def _attach(self, name: str, broker: BrokerProcess) -> LoadConnection:
        connection = LoadConnection(broker.port, name, 5, wait=False, is_lasting=True)
        try:
            connection.welcome()
        except (OSError, BenchFailed):
            connection.socket.close()
            raise
        return connection

    def _roam(self) -> None:
        while not self._is_over.wait(0.1):
            self._acknowledge()
            number = self.moves % 60_000 + 1
            self._publisher.send_all(Publish(f"road/{number % 10}", b"free", qos=1, packet_id=number))
            name = self._random.choice(list(self._connections))
            self._connections[name].socket.close()
            try:
                target = self._random.choice([one for one in self.brokers if one.process.poll() is None])
                self._connections[name] = self._attach(name, target)
                self.moves += 1
            except (OSError, BenchFailed):
                pass  # The broker is down, or drained: the client tries elsewhere later.

    def _acknowledge(self) -> None:
        by_socket = {connection.socket: connection for connection in self._connections.values()}
        for ready in select.select([one for one in by_socket if one.fileno() >= 0], [], [], 0)[0]:
            with suppress(OSError, BenchFailed):
                packet = by_socket[ready].receive_packet()
                if isinstance(packet, Publish) and packet.qos:
                    by_socket[ready].send_all(Puback(packet.packet_id))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        for connection in (self._publisher, *self._connections.values()):
            connection.socket.close()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    users = tmp_path / "users"
    command = [str(ROAMCAST), "user", "add", "olga", "--file", str(users), "--password-stdin"]
    subprocess.run(command, input=PASSWORD, text=True, check=True, timeout=60)
    config = tmp_path / "site.toml"
    config.write_text(
        f'[access]\nusers = "{users}"\nanonymous = "loopback"\n[view]\noperators = ["olga"]\n'
        "latitude = 43.26\nlongitude = -2.93\n"
    )
    port = free_port()
    places = {"donostia": (43.32, -1.98), "gasteiz": (42.85, -2.67)}
    with ExitStack() as stack:
        found = [BrokerProcess(tmp_path, "bilbao", link_port=port, config=str(config))]
        stack.callback(found[0].stop)
        for name, (latitude, longitude) in places.items():
            other = tmp_path / f"{name}.toml"
            other.write_text(
                f"[view]\nlatitude = {latitude}\nlongitude = {longitude}\n"
                f'[[peer]]\nid = "bilbao"\naddress = "127.0.0.1:{port}"\n'
                'may = ["data", "subscriptions", "sessions", "groups", "operate"]\n'
            )
            found.append(BrokerProcess(tmp_path, name, config=str(other)))
            stack.callback(found[-1].stop)
            found[-1].wait_for_link("bilbao")
        yield found


@pytest.fixture
def roamers(brokers: list[BrokerProcess]) -> Iterator[Roamers]:
    roamers = Roamers(brokers)
    yield roamers
    roamers.stop()


def log_in(screen: Screen, password: str) -> None:
    screen.page.get_by_role("button", name="Log in").click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_label("User").fill("olga")
    dialog.get_by_label("Password").fill(password)
    dialog.get_by_role("button", name="Log in").click()


def test_an_operator_sees_and_steers_a_network(
    new_screen: NewScreen, brokers: list[BrokerProcess], roamers: Roamers, tmp_path: Path
) -> None:
    bilbao, _, gasteiz = brokers
    screen = new_screen()
    screen.expected = ("401", "403")
    page = screen.open(f"http://127.0.0.1:{bilbao.http_port}/")
    details = page.get_by_label("Details")
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(details).to_contain_text(f"{CLIENTS + 1} clients.", timeout=30_000)
    expect(details).to_contain_text("Names of clients are pseudonyms")
    assert "car-0" not in page.content()

    log_in(screen, "wrong")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("User or password is wrong.")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    log_in(screen, PASSWORD)
    expect(page.get_by_text("olga", exact=True)).to_be_visible()
    expect(details).to_contain_text("car-", timeout=30_000)

    # A handoff is drawn soon after the client has attached elsewhere.
    page.evaluate(
        "window.seen = {}; setInterval(() => { for (const one of roamcastScene.model.handoffs)"
        " window.seen[one.client] ??= Date.now() - 1000 * one.at; }, 20)"
    )
    before = roamers.moves
    wait_until(lambda: roamers.moves >= before + 20, lambda: "the clients do not roam")
    screen.until("Object.keys(window.seen).length >= 10")
    delays = sorted(page.evaluate("Object.values(window.seen)"))
    assert delays[len(delays) // 2] < VISIBLE_MS, delays
    screen.shot(tmp_path / "live.png")

    gasteiz.kill()
    expect(page.get_by_label("Alerts")).to_contain_text("gasteiz", timeout=30_000)
    screen.shot(tmp_path / "killed.png")
    gasteiz.start()
    expect(page.get_by_label("Alerts")).to_contain_text("Nothing needs attention", timeout=60_000)

    page.get_by_role("combobox", name="Search clients and brokers").fill("car-117")
    page.get_by_role("option").first.click()
    expect(details.get_by_role("heading", name="car-117")).to_be_visible()
    expect(details).to_contain_text("road/7", timeout=30_000)
    screen.shot(tmp_path / "client.png")

    roamers.stop()
    page.get_by_role("combobox", name="Search clients and brokers").fill("donostia")
    page.get_by_role("option").first.click()
    page.get_by_role("button", name="Drain …").click()
    page.get_by_role("dialog").get_by_role("combobox").select_option("bilbao")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(details).to_contain_text("of 0 sessions", timeout=60_000)
    screen.shot(tmp_path / "drained.png")


@pytest.mark.parametrize("width", [390, 1300])
def test_hostile_names_from_real_clients_are_text(
    new_screen: NewScreen, brokers: list[BrokerProcess], width: int, tmp_path: Path
) -> None:
    name = '"><img src=x onerror=alert(1)>'
    client = LoadConnection(brokers[1].port, name, 5, is_lasting=True)
    with closing(client.socket):
        client.subscribe(["<script>alert(2)</script>/+"], 1)
        screen = new_screen(width)
        page = screen.open(f"http://127.0.0.1:{brokers[0].http_port}/")
        log_in(screen, PASSWORD)
        found = page.get_by_role("option", name=name)

        def is_found() -> bool:
            page.get_by_role("combobox", name="Search clients and brokers").fill("onerror")
            page.wait_for_timeout(100)
            return found.count() > 0

        wait_until(is_found, page.content)
        found.first.click()
        details = page.get_by_label("Details")
        expect(details.get_by_role("heading", level=2)).to_have_text(name)
        expect(details).to_contain_text("<script>alert(2)</script>/+", timeout=30_000)
        assert page.locator("aside img, aside script").count() == 0
        assert not screen.is_too_wide()
        screen.shot(tmp_path / "hostile.png")
