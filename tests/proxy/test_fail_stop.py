"""A proxy whose step raises: nothing of it is let out, and who brought the input is kept out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NoReturn

import aiomqtt
import pytest
from tests.daemon.brokers import MqttClient, wait_until
from tests.daemon.raw_client import Raw
from tests.proxy import poisoned_proxy
from tests.proxy.foreign import Network
from tests.proxy.proxies import Proxies

from roamcast.bench.foreign_brokers import foreign_network, missing
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.proxy import messages, steps
from roamcast.proxy.config import Config, Listener, Mqtt, Peers
from roamcast.proxy.driver import ProxyServer
from roamcast.proxy.endpoint import MqttEndpoint
from roamcast.proxy.wire import ProxyError, connect_client, connect_proxy
from roamcast.storage.failures import Failure
from roamcast.storage.kept_out import Who
from roamcast.storage.restarting import FailStop

TICKET = "0123456789abcdef"
SECRET = "what these proxies share"


class Stopped(BaseException):
    """Stands for the end of the process."""


class Recorded(FailStop):
    """Tells what would be handed to the next process."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.stops: list[tuple[str, Who | None]] = []

    def restart(self, failure: Failure, culprit: Who | None = None) -> NoReturn:
        self.stops.append((failure.error, culprit))
        raise Stopped


def proxy(folder: Path, fail_stop: FailStop | None) -> ProxyServer:
    config = Config(
        data=str(folder), listener=Listener(port=0), mqtt=Mqtt(port=0), peers=Peers(secret=SECRET)
    )
    return ProxyServer(config, Network(Random(1), [("a", "b")], 0.0).adapter("a"), fail_stop=fail_stop)


def poison(server: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service raise on requests of a client with the id `bad`, after it has done its work."""
    whole_step = server.service.step

    def step(now: float, inputs: Iterable[steps.Input]) -> list[steps.Effect]:
        inputs = list(inputs)
        effects = whole_step(now, inputs)
        for one in inputs:
            if isinstance(one, steps.Got) and getattr(one.message, "client", "") == "bad":
                raise KeyError("bad")
        return list(effects)

    monkeypatch.setattr(server.service, "step", step)


def moving_out(client: str) -> messages.MoveOut:
    return messages.MoveOut(1, client, TICKET, ("road/#",))


def test_nothing_of_a_step_that_raised_is_written_or_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        fail_stop = Recorded(tmp_path)
        server = proxy(tmp_path, fail_stop)
        poison(server, monkeypatch)
        sent: list[object] = []
        server.locals[1] = sent.append
        server.callers[1] = Who("client", "bad")
        server.step([steps.ForeignBack(), steps.Joined(1, "client", "")])
        with pytest.raises(Stopped):
            server.step([steps.Got(1, moving_out("bad"))])
        assert fail_stop.stops == [("KeyError: 'bad'", Who("client", "bad"))]
        assert sent == []
        assert server.store.buffers.by_id, "the step had done something"
        for close in fail_stop.closes:
            close()
        again = proxy(tmp_path, None)
        assert list(again.store.buffers.by_id) == []
        await again.stop()

    asyncio.run(run())


def test_without_a_process_of_its_own_the_proxy_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = proxy(tmp_path, None)
        poison(server, monkeypatch)
        server.step([steps.ForeignBack(), steps.Joined(1, "client", "")])
        with pytest.raises(KeyError):
            server.step([steps.Got(1, moving_out("bad"))])
        with pytest.raises(KeyError):
            await server.run()
        await server.stop()
        again = proxy(tmp_path, None)
        assert list(again.store.buffers.by_id) == [], "the snapshot of a clean stop would have it"
        await again.stop()

    asyncio.run(run())


def test_clients_and_proxies_that_are_kept_out_are_told_why(tmp_path: Path) -> None:
    async def run() -> None:
        fail_stop = FailStop(tmp_path, time.time)
        for who in (Who("client", "127.0.0.1"), Who("client", "car"), Who("peer", "b")):
            fail_stop.kept_out.blame(who, "why")
        server = proxy(tmp_path, fail_stop)
        endpoint = MqttEndpoint(server)
        await server.start()
        await endpoint.start()
        try:
            with pytest.raises(ProxyError, match=r"client 127\.0\.0\.1 is kept out until"):
                await connect_client(server.address, "bike", "", "")
            with pytest.raises(ProxyError, match="peer b is kept out until"):
                await connect_proxy(server.address, "b", "a", SECRET, None)
            port = int(endpoint.address.rpartition(":")[2])
            with pytest.raises(aiomqtt.MqttError, match=r"[Uu]navailable"):
                async with aiomqtt.Client("127.0.0.1", port, identifier="car"):
                    pytest.fail("it was let in")
        finally:
            await endpoint.stop()
            await server.stop()

    asyncio.run(run())


@pytest.mark.slow
def test_a_real_proxy_starts_again_and_keeps_out_who_poisoned_it(tmp_path: Path) -> None:
    reason = missing("mosquitto")
    if reason is not None:
        pytest.skip(reason)
    with foreign_network("mosquitto", tmp_path / "brokers", ["hub"]) as network:
        proxies = Proxies(network, tmp_path, {}, "")
        process = proxies.processes["hub"]
        process.command = [sys.executable, poisoned_proxy.__file__, *process.command[3:]]
        try:
            proxies.start("hub")
            assert process.child is not None
            pid = process.child.pid
            car = MqttClient("car", proxies.mqtt_ports["hub"])
            car.subscribe("road/#")
            with Raw(SimpleNamespace(port=proxies.mqtt_ports["hub"])) as bad:
                bad.send(packets.Connect(5, "bad", clean_start=False, session_expiry=60))
                assert bad.end() is None
            log = process.log.read_text
            wait_until(lambda: log().count("MQTT clients connect") == 2, log)
            assert (process.child.pid, process.child.poll()) == (pid, None)
            with Raw(SimpleNamespace(port=proxies.mqtt_ports["hub"]), "bad") as bad:
                assert bad.connack.reason is Reason.SERVER_UNAVAILABLE
                assert (bad.connack.reason_string or "").startswith("client bad is kept out until ")
            car.connect(proxies.mqtt_ports["hub"])
            assert car.present
            car.publish("road/1", b"on")
            car.wait_for_messages(1)
            car.leave()
            assert "Traceback" not in log()
        finally:
            process.stop()
