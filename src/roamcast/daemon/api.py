"""The HTTP API (docs/api.md): the network as JSON, changes as Server-Sent Events, an operator's actions."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec

from roamcast.config.sections import Config
from roamcast.daemon import bundle
from roamcast.daemon.gate import Gate, Reader, read_body
from roamcast.daemon.http import Answer, Problem, Request, Stream, TooSlow, as_json
from roamcast.daemon.network import Handoff, Network, handoff_told
from roamcast.daemon.openapi import description
from roamcast.daemon.watching import NoSession, Watching
from roamcast.records.pseudonyms import pseudonyms

log = logging.getLogger("roamcast")

API = "/api/v1/"
LIMIT_MAX = 10_000
PULSE_S = 0.25
"""Handoffs are sent in every pulse, clients in every second one, and the network in every fourth one."""
CLIENTS_PER_EVENT = 5_000
STREAM_BYTES_MAX = 4 << 20
"""Maximum size of the unsent updates of one page, in bytes."""
ACTIONS = ("drain", "kick", "forget", "promote")

Names = Callable[[str], str]
"""Maps a client id to the name that the reader may see."""
Act = Callable[[str, dict[str, str]], Awaitable[str]]
"""Performs an operator's action, given its name and arguments; returns the answer or raises InputError."""


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for an operator's action."""

    broker: str = ""
    client: str = ""
    to: str = ""


class Api:
    """Answers all HTTP requests except those for /metrics and /healthz."""

    def __init__(self, config: Callable[[], Config], watching: Watching, gate: Gate, act: Act) -> None:
        self._config = config
        self._watching = watching
        self._gate = gate
        self._act = act
        secret = config().link.secret
        # With one key or one link secret, a client has the same pseudonym at every broker.
        key = config().events.pseudonym_key or (f"view {secret}" if secret else secrets.token_hex(32))
        self._pseudonym = pseudonyms(key)
        self._pulse = Pulse(watching, self._names)

    async def answer(self, request: Request) -> Answer | Stream:
        path = request.path
        if not path.startswith(API):
            _allow(request, "GET")
            return bundle.page(path)
        rest = path.removeprefix(API)
        if rest == "login":
            _allow(request, "POST")
            return await self._gate.log_in(request)
        reader = self._gate.who(request)
        if rest == "logout":
            _allow(request, "POST")
            return self._gate.log_out(request)
        if rest == "me":
            _allow(request, "GET")
            return as_json(self._gate.told(reader))
        if not reader.may_read:
            raise Problem(HTTPStatus.UNAUTHORIZED, "log in first: POST /api/v1/login, or a token")
        if rest.startswith("actions/"):
            _allow(request, "POST")
            return await self._action(request, reader, rest.removeprefix("actions/"))
        _allow(request, "GET")
        return await self._read(request, reader, rest)

    def stop(self) -> None:
        self._pulse.stop()

    def _names(self, reader: Reader) -> Names:
        return str if reader.sees_names else self._pseudonym

    # --- reading ---

    async def _read(self, request: Request, reader: Reader, rest: str) -> Answer | Stream:
        names = self._names(reader)
        kind, _, one = rest.partition("/")
        match kind, one:
            case "openapi.json", "":
                return as_json(description())
            case "network", "":
                return as_json((await self._watching.gathered()).told(self._watching.members()))
            case "clients", "":
                return as_json(self._clients(await self._watching.gathered(), request, names))
            case "clients", _:
                return as_json(await self._client(one, reader))
            case "explain", _ if one:
                found = await self._client(one, reader)
                return as_json({"text": found["text"]})
            case "handoffs", "":
                network = await self._watching.gathered()
                last = network.last_handoffs(_limit(request))
                return as_json({"handoffs": [_handoff(handoff, names) for handoff in last]})
            case "brokers", "":
                network = await self._watching.gathered()
                return as_json({"brokers": network.told(self._watching.members())["brokers"]})
            case "links", "":
                return as_json({"links": (await self._watching.gathered()).links()})
            case "brokers", _:
                return as_json(await self._broker(one, reader))
            case "events", "":
                events = self._pulse.events(reader, lambda: self._gate.who(request))
                return Stream(events, (reader.user is not None) + reader.may_operate)
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such path; /api/v1/openapi.json describes all")

    def _clients(self, network: Network, request: Request, names: Names) -> dict[str, object]:
        search, broker = request.query.get("search", ""), request.query.get("broker", "")
        after, limit = request.query.get("after", ""), _limit(request)
        found = sorted(
            (name, client)
            for client, (where, _) in network.clients.items()
            if (not broker or where == broker) and search.lower() in (name := names(client)).lower()
        )
        page = [(name, client) for name, client in found if not after or name > after]
        return {
            "clients": [_client(network, client, name) for name, client in page[:limit]],
            "total": len(found),
            "next": page[limit - 1][0] if len(page) > limit else None,
        }

    async def _client(self, shown: str, reader: Reader) -> dict[str, Any]:
        network, names = await self._watching.gathered(), self._names(reader)
        client = shown
        if not reader.sees_names:
            client = next((one for one in network.clients if names(one) == shown), "")
        try:
            found = await self._watching.ask_holder(client, "client")
        except NoSession:
            why = "no broker that can be asked holds a session of this client"
            raise Problem(HTTPStatus.NOT_FOUND, why) from None
        moves = {(move["at"], move["to"]): move for move in found["moves"]}
        for one in network.handoffs:
            if one.client == client:
                moves[one.at, one.to] = {
                    "at": one.at, "from": one.came_from, "to": one.to, "duration_ms": one.duration_ms
                }  # fmt: skip
        found["moves"] = [moves[key] for key in sorted(moves, reverse=True)]
        found["id"] = shown
        if not reader.sees_names:
            found["owner"] = names(found["owner"]) if found["owner"] else ""
        found["text"] = in_words(found)
        return found

    async def _broker(self, broker: str, reader: Reader) -> dict[str, Any]:
        network = await self._watching.gathered()
        if broker not in network.brokers and broker not in self._watching.members():
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no broker {broker} in the network")
        told = network.broker(broker)
        if not network.is_up(broker):
            return {**told, "configuration": None, "status": None}
        details = await self._watching.ask(broker, "broker")
        status = details["status"]
        if not reader.sees_names:
            status["kept_out"] = [one for one in status["kept_out"] if one["kind"] != "client"]
        return {**told, **details}

    # --- acting ---

    async def _action(self, request: Request, reader: Reader, name: str) -> Answer:
        if not reader.may_operate:
            raise Problem(HTTPStatus.FORBIDDEN, "only operators may do that (view.operators, [[view.token]])")
        if name not in ACTIONS:
            raise Problem(HTTPStatus.NOT_FOUND, f"there are {', '.join(ACTIONS)}")
        action = msgspec.structs.asdict(read_body(request, Action))
        log.warning(
            "operator %s (%s) orders: %s %s", reader.user, request.host, name,
            " ".join(f"{key}={value!r}" for key, value in action.items() if value),
        )  # fmt: skip
        return as_json({"done": True, "text": await self._act(name, action)})


class Pulse:
    """Sends changes to all open pages. Each change is encoded once for all readers who see the same names."""

    def __init__(self, watching: Watching, names: Callable[[Reader], Names]) -> None:
        self._watching = watching
        self._names = names
        self._pages: dict[Page, None] = {}
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def events(self, reader: Reader, who: Callable[[], Reader]) -> AsyncIterator[bytes]:
        """Yield events while `who` returns this reader: until it logs out or loses a right."""
        yield b"retry: 2000\n\n"
        await self._watching.gathered()
        page = Page(reader, self._names(reader), who)
        if not self._pages:
            # Changes made while no page was open are not sent.
            self._watching.network.take_changes()
            self._watching.network.take_handoffs()
        everything = self._everything(page)
        self._pages[page] = None  # From here on the new page waits for changes.
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._beat())
        try:
            for event in everything:
                yield event
            while event := await page.next():
                yield event
        finally:
            del self._pages[page]

    def _everything(self, page: Page) -> list[bytes]:
        network = self._watching.network
        events = [_event("network", network.told(self._watching.members()))]
        clients = list(network.clients)
        for first in range(0, max(1, len(clients)), CLIENTS_PER_EVENT):
            part = clients[first : first + CLIENTS_PER_EVENT]
            rows = [_client(network, client, page.names(client)) for client in part]
            events.append(_event("clients", {"clients": rows, "gone": []}))
        return events

    async def _beat(self) -> None:
        number = 0
        try:
            while self._pages:
                self._watching.look()
                self._tell(number)
                number += 1
                await asyncio.sleep(PULSE_S)
        except Exception:
            log.exception("changes cannot be sent to open pages")
        finally:
            self._task = None

    def _tell(self, number: int) -> None:
        network = self._watching.network
        handoffs = network.take_handoffs()
        changed = network.take_changes() if number % 2 == 0 and network.changed else {}
        audiences: dict[bool, list[bytes]] = {}
        for page in list(self._pages):
            if number % 4 == 0 and page.is_revoked():
                page.put(b"")
                continue
            events = audiences.get(page.reader.sees_names)
            if events is None:
                events = audiences[page.reader.sees_names] = []
                if number % 4 == 0:
                    events.append(_event("network", network.told(self._watching.members())))
                if changed:
                    events.append(_event("clients", _changes(network, changed, page.names)))
                if handoffs:
                    told = [_handoff(one, page.names) for one in handoffs]
                    events.append(_event("handoffs", {"handoffs": told}))
            for event in events:
                page.put(event)


class Page:
    """One open page and its unsent updates."""

    def __init__(self, reader: Reader, names: Names, who: Callable[[], Reader]) -> None:
        self.reader = reader
        self.names = names
        self._who = who
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0

    def is_revoked(self) -> bool:
        try:
            return self._who() != self.reader
        except Problem:
            return True

    def put(self, event: bytes) -> None:
        if self._bytes <= STREAM_BYTES_MAX:  # Otherwise the page is about to be closed.
            self._bytes += len(event)
            self._waiting.put_nowait(event)

    async def next(self) -> bytes:
        """Return the next update; b"" ends the stream."""
        if self._bytes > STREAM_BYTES_MAX:
            raise TooSlow(f"{self._bytes} bytes are unsent")
        event = await self._waiting.get()
        self._bytes -= len(event)
        return event


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def _changes(network: Network, changed: dict[str, None], names: Names) -> dict[str, object]:
    here = [client for client in changed if client in network.clients]
    return {
        "clients": [_client(network, client, names(client)) for client in here],
        "gone": [names(client) for client in changed if client not in network.clients],
    }


def _client(network: Network, client: str, shown: str) -> dict[str, object]:
    told = network.client(client)
    assert told is not None
    told["id"] = shown
    return told


def _handoff(one: Handoff, names: Names) -> dict[str, object]:
    return {**handoff_told(one), "client": names(one.client)}


def _allow(request: Request, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, f"only {method} is allowed here")


def _limit(request: Request) -> int:
    text = request.query.get("limit", "100")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= LIMIT_MAX:
        raise Problem(HTTPStatus.BAD_REQUEST, f"limit = {text[:20]!r}: valid is 1 to {LIMIT_MAX}")
    return int(text)


def in_words(found: dict[str, Any]) -> list[str]:
    """Describe a session in sentences."""
    client, broker = found["id"], found["broker"]
    state = "attached to" if found["attached"] else "away; its session is at"
    lines = [f"{client} is {state} broker {broker}."]
    if found["queued"]:
        lines.append(
            f"{found['queued']:,} notifications ({found['queued_bytes']:,} bytes) wait for it, "
            f"{found['inflight']:,} of them sent and not acknowledged."
        )
    else:
        lines.append("Nothing waits for it.")
    count = found["subscription_count"]
    lines.append(
        f"It has {count:,} subscription{'' if count == 1 else 's'}." if count else "It subscribes to nothing."
    )
    if not found["attached"]:
        lines.append(
            "Its session never expires." if found["expires_s"] == 0xFFFF_FFFF
            else f"Its session ends {found['expires_s']:,} s after it went away."
        )  # fmt: skip
    if found["predicted"]:
        lines.append(f"It is expected next at {', '.join(found['predicted'])}.")
    if found["moves"]:
        last = found["moves"][0]
        lines.append(
            f"Its last move was from {last['from']} to {last['to']} and took {last['duration_ms']:,.1f} ms."
        )
    return lines
