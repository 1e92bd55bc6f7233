"""Broker processes on free loopback ports, for tests: started, watched, and stopped by their process id."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

ROAMCAST = Path(sys.executable).parent / "roamcast"
DEADLINE_S = 60.0
SECRET = "a secret of all these brokers"


def wait_until(happened: Callable[[], bool], complaint: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end, complaint()
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerProcess:
    """One broker; what it logs is kept."""

    _secret = SECRET

    def __init__(
        self,
        folder: Path,
        id: str,
        *settings: str,
        link_port: int | None = None,
        peers: dict[str, int] | None = None,
        secret: str = SECRET,
        before: list[str] | None = None,
        program: tuple[str, ...] = (str(ROAMCAST),),
        client_port: int = 0,
        config: str | None = None,
    ) -> None:
        self.id = id
        self.data = folder / id
        self.link_port = link_port
        self._secret = secret
        options = ["--config", config] if config is not None else []
        options += ["--id", id, "--listen", f"127.0.0.1:{client_port}", "--data", str(self.data)]
        all_settings = [
            "journal.sync=process", "metrics.enabled=true", "metrics.port=0", "link.reconnect_max_s=0.5",
            "link.unlisted=accept", *settings,
        ]  # fmt: skip
        for setting in all_settings:
            options += ["--set", setting]
        if link_port is not None:
            options += ["--peer-listen", f"127.0.0.1:{link_port}"]
        for peer, port in (peers or {}).items():
            options += ["--peer", f"{peer}=127.0.0.1:{port}" if port else peer]
        self._command = [*(before or []), *program, "broker", *options]
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "ROAMCAST_LINK_SECRET": self._secret} if self._secret else None
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, env=environment)
        self._first = len(self.lines)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        try:
            self.http_port = int(self.wait_for(r"metrics on http://[\d.]+:(\d+)")[1])
            self.port = int(self.wait_for(r"listens on (\d+)")[1])
        except BaseException:
            self.kill()
            raise

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as log:
            for line in log:
                self.lines.append(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def look() -> bool:
            recent = self.lines[self._first :]
            found.extend(match for line in recent if (match := re.search(pattern, line)))
            return bool(found) or self.process.poll() is not None

        wait_until(look, lambda: f"nothing like {pattern} in {''.join(self.lines)}")
        if not found and self.process.poll() is not None:
            self._reader.join(timeout=DEADLINE_S)
            look()
        assert found, f"it has ended: {''.join(self.lines)}"
        return found[0]

    def get(self, path: str) -> tuple[int, str]:
        status, _, body = self.raw_http(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return status, body

    def raw_http(self, request: bytes) -> tuple[int, str, str]:
        """Status, head and body."""
        with socket.create_connection(("127.0.0.1", self.http_port), timeout=DEADLINE_S) as connection:
            connection.sendall(request)
            answer = b""
            while chunk := connection.recv(65_536):
                answer += chunk
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), head, body

    def metric(self, name: str) -> float:
        """The value of a metric with its labels, as it is written; -1 if there is none."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return -1

    def wait_for_link(self, peer: str) -> None:
        name = f'roamcast_link_up{{peer="{peer}"}}'
        wait_until(lambda: self.metric(name) == 1, lambda: f"no link to {peer}: {''.join(self.lines)}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)
        self._reader.join(timeout=DEADLINE_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            code = self.process.wait(timeout=DEADLINE_S)
            assert code == 0, "".join(self.lines)
        self._reader.join(timeout=DEADLINE_S)
        assert not any("Traceback" in line for line in self.lines), "".join(self.lines)


def roamcast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROAMCAST), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def roamcast_json(*arguments: str) -> dict[str, Any]:
    done = roamcast(*arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class MqttClient:
    """An MQTT 5 client with a session that lasts."""

    def __init__(self, id: str, port: int, *, lasting: bool = True, version: int = paho.MQTTv5) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.retained: list[str] = []
        self.answers: dict[str, Any] = {}
        self.disconnects: list[tuple[int, str]] = []
        self.id = id
        self.connect(port, lasting, version)

    def connect(self, port: int, lasting: bool = True, version: int = paho.MQTTv5) -> None:
        """Also to another broker; the connection before must have ended."""
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, self.id,
            protocol=MQTTProtocolVersion(version), reconnect_on_failure=False,
            clean_session=None if version == paho.MQTTv5 else not lasting,
        )  # fmt: skip
        self.paho.on_connect = lambda *said: self._keep("connect", (said[3], said[2].session_present))
        self.paho.on_subscribe = lambda *said: self._keep("subscribe", said[3][0])
        self.paho.on_message = self._on_message
        self.paho.on_disconnect = self._on_disconnect
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3600 if lasting else 0
            self.paho.connect("127.0.0.1", port, clean_start=False, properties=properties)
        else:
            self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        reason, self.present = self.answer("connect")
        self.connected = str(reason)

    def _keep(self, what: str, value: Any) -> None:
        self.answers[what] = value

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        self.messages.append((message.topic, message.payload))
        if message.retain:
            self.retained.append(message.topic)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any = None) -> None:
        self.disconnects.append((reason.value, getattr(properties, "ServerReference", "")))

    def answer(self, what: str) -> Any:
        wait_until(lambda: what in self.answers, lambda: f"no answer to {what}")
        return self.answers.pop(what)

    def subscribe(self, topic: str, qos: int = 1) -> None:
        self.paho.subscribe(topic, qos=qos)
        assert not self.answer("subscribe").is_failure

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self.paho.publish(topic, payload, qos=qos).wait_for_publish(DEADLINE_S)

    def wait_for_messages(self, count: int) -> None:
        wait_until(lambda: len(self.messages) >= count, lambda: f"only {self.messages}")

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()
        # Without this cycle the client closes its sockets as soon as nobody refers to it.
        self.paho.on_connect = self.paho.on_subscribe = self.paho.on_message = self.paho.on_disconnect = None
