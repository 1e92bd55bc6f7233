"""The page in Chromium before a server that makes a network up: names, widths, logins, load and replays."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser import NewScreen, needs_chromium
from tests.web.fake_broker import FakeBroker, FakeNetwork

from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.view.log import runs_in
from roamcast.view.replay import build, encode
from roamcast.view.server import ReplayServer

pytestmark = [pytest.mark.slow, needs_chromium]

BROKERS = ["bilbao", "donostia", "gasteiz"]
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    '"><script>alert(2)</script>',
    "javascript:alert(3)",
    "{{7*7}}${7*7}",
    "a/../../etc",
    "‮gnorw",
    "x" * 400,
    "car 0 #?&=%2f",
]


def names(count: int) -> list[str]:
    return [f"car-{number:04d}" for number in range(count)]


def find(page: Page, text: str) -> None:
    """Search, and take what is found first."""
    page.get_by_role("combobox", name="Search clients and brokers").fill(text)
    page.get_by_role("option").first.click()


def tabbed_to(page: Page) -> str:
    page.keyboard.press("Tab")
    told: str = page.evaluate("document.activeElement.innerText || document.activeElement.id || ''")
    return told


@pytest.mark.parametrize(
    ("width", "scheme"), [(1300, "light"), (1300, "dark"), (390, "light"), (390, "dark")]
)
@pytest.mark.parametrize("with_places", [True, False])
def test_the_page_fits_shows_the_network_and_its_details(
    new_screen: NewScreen, tmp_path: Path, width: int, scheme: str, with_places: bool
) -> None:
    network = FakeNetwork(BROKERS, names(60), 4.0, with_places=with_places)
    network.lost = 2
    with FakeBroker(network) as broker:
        screen = new_screen(width, 844, scheme)
        page = screen.open(broker.url)
        expect(page.get_by_role("status").first).to_have_text("Live")
        screen.until("roamcastScene.frames > 20")
        assert not screen.is_too_wide()
        screen.shot(tmp_path / "overview.png")
        expect(page.get_by_label("Figures")).to_contain_text("2 queue full")
        network.kill("gasteiz")
        expect(page.get_by_label("Alerts")).to_contain_text("Broker gasteiz is down")
        find(page, "car-0007")
        details = page.get_by_label("Details")
        expect(details.get_by_role("heading", name="car-0007")).to_be_visible()
        expect(details).to_contain_text("road/+/parking QoS 1, where free > 3")
        assert not screen.is_too_wide()
        screen.shot(tmp_path / "client.png")
        find(page, "donostia")
        expect(details).to_contain_text("Configuration")
        screen.shot(tmp_path / "broker.png")
        assert not screen.is_too_wide()
        network.restore("gasteiz")
        page.keyboard.press("Escape")
        expect(page.get_by_label("Alerts")).to_contain_text("Nothing needs attention")


def test_the_keyboard_is_enough(new_screen: NewScreen) -> None:
    with FakeBroker(FakeNetwork(BROKERS, names(10), 0.0)) as broker:
        screen = new_screen()
        page = screen.open(broker.url)
        expect(page.get_by_label("Figures")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("car-0003")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="car-0003")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name="car-0003")).to_be_hidden()
        page.evaluate("document.activeElement.blur()")
        reached = [tabbed_to(page) for _ in range(12)]
        assert any("Fit" in one for one in reached), reached
        assert any("donostia" in one for one in reached), reached
        before = page.evaluate("roamcastScene.placeOf('bilbao').x")
        page.get_by_label(re.compile("Picture of the network")).focus()
        page.keyboard.press("ArrowRight")
        screen.until(f"roamcastScene.placeOf('bilbao').x < {before} - 30")


def test_names_of_strangers_are_text(new_screen: NewScreen, tmp_path: Path) -> None:
    network = FakeNetwork(BROKERS, HOSTILE, 0.0)
    with FakeBroker(network) as broker:
        screen = new_screen(390)
        page = screen.open(broker.url)
        for name in HOSTILE:
            network.move(name)
            find(page, name)
            # Spaces of a name may be drawn as one.
            expect(page.get_by_label("Details").get_by_role("heading", level=2)).to_contain_text(name[:200])
            expect(page.get_by_label("Details")).to_contain_text("Attached to")
            assert not screen.is_too_wide(), name
        page.keyboard.press("Escape")
        expect(page.get_by_label("Details")).to_contain_text('"><script>alert(2)</script>')
        screen.shot(tmp_path / "hostile.png")
        assert page.locator("aside img, aside script").count() == 0


def test_a_wrong_password_is_refused_and_a_right_one_opens_the_page(
    new_screen: NewScreen, tmp_path: Path
) -> None:
    with FakeBroker(FakeNetwork(BROKERS, names(5)), users={"olga": "right"}) as broker:
        screen = new_screen(390)
        screen.expected = ("401",)
        page = screen.open(broker.url)
        page.get_by_label("User").fill("olga")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("User or password is wrong.")
        expect(page.get_by_label("Password")).to_have_value("")
        screen.shot(tmp_path / "login.png")
        assert not [path for path in broker.asked if "events" in path or "network" in path]
        page.get_by_label("Password").fill("right")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_label("Figures")).to_be_visible()


def test_actions_ask_first(new_screen: NewScreen, tmp_path: Path) -> None:
    network = FakeNetwork(BROKERS, names(20), 0.0)
    with FakeBroker(network) as broker:
        screen = new_screen()
        page = screen.open(broker.url)
        find(page, "gasteiz")
        page.get_by_role("button", name="Drain …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Nothing that is owed to them is lost")
        screen.shot(tmp_path / "drain.png")
        dialog.get_by_role("button", name="Cancel").click()
        assert network.done == []
        page.get_by_role("button", name="Drain …").click()
        dialog.get_by_role("combobox").select_option("donostia")
        dialog.get_by_role("button", name="Drain").click()
        expect(page.get_by_text("drain of gasteiz has begun.")).to_be_visible()
        assert network.done == [("drain", {"broker": "gasteiz", "to": "donostia"})]
        network.kill("bilbao")
        find(page, "bilbao")
        page.get_by_role("button", name="Forget …").click()
        forget = dialog.get_by_role("button", name="Forget for good")
        expect(forget).to_be_disabled()
        dialog.get_by_role("textbox").fill("bilbao")
        forget.click()
        expect(dialog).to_be_hidden()
        assert network.done[1] == ("forget", {"broker": "bilbao"})
        network.followers["donostia"] = {
            "donostia-2": {"connected": True, "in_sync": True, "lag": 3},
            "donostia-3": {"connected": False, "in_sync": False, "lag": 900},
        }
        find(page, "donostia")
        details = page.get_by_label("Details")
        expect(details).to_contain_text("donostia-3 away, 900 entries behind")
        expect(page.get_by_role("button", name="Promote donostia-3 …")).to_be_hidden()
        screen.shot(tmp_path / "followers.png")
        page.get_by_role("button", name="Promote donostia-2 …").click()
        expect(dialog).to_contain_text("becomes the leader of donostia")
        dialog.get_by_role("button", name="Promote").click()
        expect(dialog).to_be_hidden()
        assert network.done[2] == ("promote", {"broker": "donostia", "to": "donostia-2"})


def test_a_broker_that_falls_silent_is_said_so(new_screen: NewScreen, tmp_path: Path) -> None:
    screen = new_screen()
    screen.expected = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_EMPTY_RESPONSE",
        "Failed to load",
    )
    with FakeBroker(FakeNetwork(BROKERS, names(5))) as broker:
        page = screen.open(broker.url)
        expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.get_by_role("alert")).to_contain_text("the page tries again by itself")
    expect(page.get_by_role("status").first).to_contain_text("No news for")
    screen.shot(tmp_path / "silent.png")
    port = int(broker.url.rpartition(":")[2].strip("/"))
    with FakeBroker(FakeNetwork(BROKERS, names(5)), port=port):
        expect(page.get_by_role("status").first).to_have_text("Live")


def long_log(folder: Path, rows: int) -> ReplayServer:
    """A log of clients that go round between brokers and get what one of them publishes."""
    with LogWriter(folder, "run") as log:
        sequence = 0

        def tell(time: float, node: str, kind: str, **fields: Any) -> None:
            nonlocal sequence
            sequence += 1
            log.write([Row(sequence, time, node, kind, **fields)])

        for client in range(100):
            tell(0.0, "b0", "attached", client=f"c{client}", broker="b0", number=1)
        number = 0
        while sequence < rows:
            number += 1
            at = number / 10
            burst = {"publisher": "p", "incarnation": 1, "number": number, "notifications": 1}
            tell(at, "b0", "published", client="p", broker="b0", published_at=at, **burst)
            for client in range(100):
                tell(
                    at + 0.01,
                    f"c{client}",
                    "delivered",
                    client=f"c{client}",
                    broker="b0",
                    published_at=at,
                    **burst,
                )
            tell(at, f"b{number % 4}", "handoff_started", client=f"c{number % 100}", broker=f"b{number % 4}")
            target, origin = f"b{number % 4}", f"b{(number - 1) % 4}"
            tell(at + 0.03, target, "attached", client=f"c{number % 100}", broker=target, number=number)
            tell(at + 0.03, target, "handoff_finished", client=f"c{number % 100}", broker=target, peer=origin)
    files = runs_in(folder)["run"]
    return ReplayServer({"run": lambda: encode(build(files, "run"))})


def test_a_log_of_a_million_rows_opens_and_plays(new_screen: NewScreen, tmp_path: Path) -> None:
    with long_log(tmp_path / "log", 1_000_000) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        screen = new_screen()
        began, began_s = time.process_time(), time.monotonic()
        page = screen.open(server.url)
        expect(page.get_by_role("button", name="Pause")).to_be_visible(timeout=120_000)
        print(f"opened after {time.monotonic() - began_s:.1f} s")
        assert time.process_time() - began < 5, "seconds of the processor; a quiet machine needs half of them"
        page.get_by_label("Speed").select_option("10")
        screen.until("roamcastScene.frames > 30")
        before = page.locator("#position").input_value()
        screen.until(f"document.querySelector('#position').value > {float(before) + 5}")
        page.get_by_role("button", name="Pause").click()
        page.locator("#position").focus()
        page.keyboard.press("End")
        expect(page.get_by_label("Details")).to_contain_text("Nothing needs attention")
        screen.shot(tmp_path / "replay.png")
        server.shutdown()


def test_a_file_that_is_no_replay_is_refused_in_words(new_screen: NewScreen, tmp_path: Path) -> None:
    (tmp_path / "wrong.roamview").write_bytes(b"something else")
    with FakeBroker(FakeNetwork(BROKERS, names(5))) as broker:
        screen = new_screen()
        page = screen.open(broker.url)
        page.locator("input[type=file]").set_input_files(tmp_path / "wrong.roamview")
        expect(page.get_by_role("alert")).to_contain_text("This is no replay")
