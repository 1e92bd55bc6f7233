"""A server that speaks the HTTP API of a broker and makes its network up: for tests of the page alone.

    python -m tests.web.fake_broker --clients 5000 --handoffs-per-s 200

What it serves is the bundle that ships, under the headers that a broker sends.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUNDLE = Path(__file__).resolve().parents[2] / "src" / "roamcast" / "web"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css",
    ".svg": "image/svg+xml",
}  # fmt: skip
CITIES = {
    "bilbao": (43.263, -2.935), "donostia": (43.318, -1.981), "gasteiz": (42.846, -2.672),
    "iruna": (42.812, -1.645), "logrono": (42.466, -2.45), "santander": (43.462, -3.81),
}  # fmt: skip


class FakeNetwork:
    """Brokers in a line, or around the first one, and clients that change brokers at a given rate."""

    def __init__(
        self, brokers: list[str], clients: list[str], handoffs_per_s: float = 5.0, *,
        with_places: bool = True, seed: int = 1,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.started_s = time.time()
        self.handoffs_per_s = handoffs_per_s
        self.places: dict[str, tuple[float, float] | None] = {
            name: CITIES.get(name) if with_places else None for name in brokers
        }
        self.down: dict[str, float] = {}
        self.links = [(brokers[0], other) for other in brokers[1:]]
        self.clients = {name: self._client(name, self.random.choice(brokers)) for name in clients}
        self.moves: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
        self.handoffs: list[dict[str, Any]] = []
        self.changed: dict[str, int] = dict.fromkeys(clients, 0)
        """Client to the number of its last change."""
        self.changes = 0
        self.done: list[tuple[str, dict[str, Any]]] = []
        """Actions that were asked for, as they came."""
        self.followers: dict[str, dict[str, Any]] = {}
        """Broker to its followers, if it is replicated."""
        self.lost = 0
        self.moved = 0
        self.owed_before_s = 0.0

    def _client(self, name: str, broker: str) -> dict[str, Any]:
        return {
            "id": name, "broker": broker, "attached": self.random.random() < 0.93,
            "queued": self.random.choice([0] * 12 + [3, 40, 900]), "lat": None, "lon": None,
            "predicted": [self.random.choice(list(self.places))],
        }  # fmt: skip

    def kill(self, broker: str) -> None:
        with self.lock:
            self.down[broker] = time.time()

    def restore(self, broker: str) -> None:
        with self.lock:
            del self.down[broker]

    def go_on(self, seconds: float) -> None:
        """Let clients move as often as they do in so many seconds."""
        self.owed_before_s += seconds * self.handoffs_per_s
        for _ in range(int(self.owed_before_s)):
            self.owed_before_s -= 1
            self.move(self.random.choice(list(self.clients)))

    def move(self, name: str, to: str | None = None) -> None:
        with self.lock:
            client = self.clients[name]
            up = [one for one in self.places if one not in self.down and one != client["broker"]]
            if not up:
                return
            target = to or self.random.choice(up)
            handoff = {
                "client": name, "from": client["broker"], "to": target, "at": time.time(),
                "duration_ms": round(self.random.lognormvariate(4.0, 1.2), 1), "moved": client["queued"],
            }  # fmt: skip
            client |= {
                "broker": target, "attached": True, "queued": 0,
                "predicted": [self.random.choice([one for one in self.places if one != target])],
            }  # fmt: skip
            self.changes += 1
            self.moved += 1
            self.changed[name] = self.changes
            self.handoffs.append(handoff)
            del self.handoffs[:-2000]
            self.moves[name] = [handoff, *self.moves[name]][:20]

    # --- what is said ---

    def network(self) -> dict[str, Any]:
        with self.lock:
            now = time.time()
            links = [self._link(*ends) for ends in self.links]
            owed = int((now - self.started_s) * 800) + 100_000
            return {
                "served_by": next(iter(self.places)), "time": now,
                "brokers": [self._broker(name, now) for name in self.places], "links": links,
                "figures": {
                    "owed": owed, "delivered": owed - 120, "lost": self.lost, "repeated": 0,
                    "given_up": {"queue full": self.lost}, "received_per_s": 80 + self.random.random() * 9,
                    "delivered_per_s": 800 + self.random.random() * 40, "handoffs_per_s": self.handoffs_per_s,
                    "handoff_ms": {"p50": 40 + self.random.random() * 9, "p99": 340.0},
                },
                "alerts": [
                    {"level": "error", "kind": "broker_down", "text": f"Broker {name} is down", "since": at}
                    for name, at in self.down.items()
                ],
            }  # fmt: skip

    def _broker(self, name: str, now: float) -> dict[str, Any]:
        here = [client for client in self.clients.values() if client["broker"] == name]
        place = self.places[name]
        is_up = name not in self.down
        return {
            "id": name, "up": is_up, "lat": place and place[0], "lon": place and place[1], "version": "0.2.0",
            "uptime_s": now - self.started_s + 86_400, "connections": len(here), "sessions": len(here),
            "attached": sum(client["attached"] for client in here) if is_up else 0,
            "queued": sum(client["queued"] for client in here),
            "queued_bytes": 160 * sum(client["queued"] for client in here), "memory_bytes": 91_000_000,
            "cpu": 0.08, "journal": "ok",
            "role": "leader" if name in self.followers else "single", "lag": 0,
            "rates": {"received_per_s": 31.0, "delivered_per_s": 270.5, "handoffs_per_s": 2.0},
            "latency_ms": {"p50": 1 + self.random.random(), "p99": 9 + 3 * self.random.random()},
            "handoff_ms": {"p50": 43.0, "p99": 310.0},
        }  # fmt: skip

    def _link(self, a: str, b: str) -> dict[str, Any]:
        is_up = a not in self.down and b not in self.down
        why = "" if is_up else "connection refused"
        return {"a": a, "b": b, "up": is_up, "why": why, "kept_bytes": 0 if is_up else 48_213}

    def clients_since(self, change: int) -> tuple[list[dict[str, Any]], int]:
        with self.lock:
            found = [
                dict(self.clients[name]) for name, at in self.changed.items() if at > change or not change
            ]
            return found, max(self.changes, 1)

    def client(self, name: str) -> dict[str, Any] | None:
        client = self.clients.get(name)
        if client is None:
            return None
        moves = [{"at": one["at"], "from": one["from"], "to": one["to"], "duration_ms": one["duration_ms"]}
                 for one in self.moves[name]]  # fmt: skip
        return {
            **client, "owner": "fleet", "protocol": "MQTT 5", "queued_bytes": 160 * client["queued"],
            "inflight": 1,
            "subscriptions": [{"filter": "road/+/parking", "qos": 1, "selector": "free > 3", "group": None}],
            "expires_s": 3600, "moves": moves,
            "text": [f"{'Attached to' if client['attached'] else 'Away from'} {client['broker']}."],
        }  # fmt: skip


class FakeBroker:
    """The server; use it as a context manager."""

    def __init__(self, network: FakeNetwork, users: dict[str, str] | None = None, *, port: int = 0) -> None:
        self.network = network
        self.users = users or {}
        """Users with passwords who may operate. Without any, everyone may look and operate."""
        self.asked: list[str] = []
        self.is_over = threading.Event()
        outer = self

        class Handler(_Handler):
            broker = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> FakeBroker:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._move, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()

    def _move(self) -> None:
        while not self.is_over.wait(0.05):
            self.network.go_on(0.05)


class _Handler(BaseHTTPRequestHandler):
    broker: FakeBroker
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Tests read what was asked from `asked`."""

    def do_GET(self) -> None:
        self.broker.asked.append(self.path)
        target = urlsplit(self.path)
        if not target.path.startswith("/api/v1/"):
            return self._file(target.path)
        path = target.path.removeprefix("/api/v1/")
        user = self._user()
        network = self.broker.network
        needs_login = bool(self.broker.users)
        if path == "me":
            may_operate = not needs_login or user is not None
            return self._json(
                {
                    "user": user,
                    "may_operate": may_operate,
                    "login_needed": needs_login and user is None,
                    "pseudonyms": False,
                }
            )
        if needs_login and user is None:
            return self._text(401, "log in first")
        kind, _, name = path.partition("/")
        name = unquote(name)
        if path == "network":
            return self._json(network.network())
        if path == "events":
            return self._events()
        if path == "clients":
            wanted = parse_qs(target.query).get("search", [""])[0].lower()
            found = [one for key, one in network.clients.items() if wanted in key.lower()]
            return self._json({"clients": found[:100], "total": len(found), "next": None})
        if kind == "clients":
            client = network.client(name)
            return self._json(client) if client else self._text(404, "no broker has a session of it")
        if kind == "brokers" and name in network.places:
            (broker,) = [one for one in network.network()["brokers"] if one["id"] == name]
            configuration = {"listener": {"address": "127.0.0.1", "port": 1883}}
            followers = network.followers.get(name)
            status = {"journal": "ok", **({"replication": {"followers": followers}} if followers else {})}
            return self._json(broker | {"configuration": configuration, "status": status})
        return self._text(404, "not found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/v1/login":
            if self.broker.users.get(body["user"]) != body["password"]:
                return self._text(401, "user or password is wrong")
            cookie = f"user={body['user']}; HttpOnly; SameSite=Strict; Path=/"
            return self._json({}, {"Set-Cookie": cookie})
        if self.broker.users and self._user() is None:
            return self._text(403, "you may not do that")
        action = self.path.rpartition("/")[2]
        self.broker.network.done.append((action, body))
        target = body.get("broker") or body.get("client")
        return self._json({"done": True, "text": f"{action} of {target} has begun."})

    def _user(self) -> str | None:
        name = (self.headers.get("Cookie") or "").partition("user=")[2].partition(";")[0]
        return name if name in self.broker.users else None

    def _file(self, path: str) -> None:
        file = (BUNDLE / (path.strip("/") or "index.html")).resolve()
        if not file.is_relative_to(BUNDLE) or not file.is_file():
            return self._text(404, "not found")
        return self._send(200, TYPES.get(file.suffix, "application/octet-stream"), file.read_bytes())

    def _events(self) -> None:
        self._head(200, "text/event-stream", None, {})
        try:
            for kind, data in self._told():
                self.wfile.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # The page has gone.
        self.close_connection = True

    def _told(self) -> Iterator[tuple[str, dict[str, Any]]]:
        network = self.broker.network
        turn, change, moved = 0, 0, network.moved
        while True:
            if turn % 4 == 0:
                yield "network", network.network()
            if turn % 2 == 0:
                clients, change = network.clients_since(change)
                yield "clients", {"clients": clients, "gone": []}
            fresh, moved = network.moved - moved, network.moved
            if fresh:
                yield "handoffs", {"handoffs": network.handoffs[-fresh:]}
            turn += 1
            if self.broker.is_over.wait(0.25):
                return

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, "application/json", json.dumps(value).encode(), headers)

    def _text(self, status: int, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, kind, len(body), headers or {})
        self.wfile.write(body)

    def _head(self, status: int, kind: str, length: int | None, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind, "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store", **headers,
        }.items():  # fmt: skip
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--handoffs-per-s", type=float, default=5.0)
    parser.add_argument("--no-places", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    cities = list(CITIES)
    brokers = [cities[index] if index < len(cities) else f"b{index:02d}" for index in range(given.brokers)]
    names = [f"car-{number:04d}" for number in range(given.clients)]
    network = FakeNetwork(brokers, names, given.handoffs_per_s, with_places=not given.no_places)
    with FakeBroker(network, port=given.port) as broker:
        print(broker.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
