"""Asks an HTTP service to authenticate a client. Any failure refuses the client.

The service gets a POST with JSON: `{"user", "password", "client", "address", "broker"}`. It answers 200 with
`{"allow": true}`, and may add `"publish"` and `"subscribe"` (topic filters, and then no others are allowed)
and `"expires_s"`, after which the connection ends. `{"allow": false}`, 401 and 403 refuse.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from roamcast.config.addresses import is_loopback
from roamcast.config.private_files import check_readable
from roamcast.config.sections import HttpHook
from roamcast.errors import InputError
from roamcast.mqtt.server.access import Grants, check_grants

if TYPE_CHECKING:
    import h11

ANSWER_BYTES_MAX = 65_536
ANSWERS_KEPT_MAX = 10_000
REFUSED = (401, 403)


class Question(NamedTuple):
    user: str
    password: bytes
    client: str
    address: str
    broker: str

    def body(self) -> bytes:
        asked = {**self._asdict(), "password": self.password.decode("utf-8", "replace")}
        return msgspec.json.encode(asked)


class Answer(msgspec.Struct, frozen=True):
    """Answer of the service."""

    allow: bool
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    expires_s: float | None = None

    @property
    def grants(self) -> Grants | None:
        if self.publish is None and self.subscribe is None:
            return None
        return Grants(self.publish or (), self.subscribe or ())


class Known(NamedTuple):
    """An answer, and when what it allows ends: also for those who get it from the cache."""

    answer: Answer
    expires_at: float | None
    """Unix time."""


class HookFailed(Exception):
    """Raised if the service could not be asked, or its answer cannot be used."""


class HookBusy(HookFailed):
    """Raised if too many requests are open."""


class Hook:
    """One service; accepting answers are cached for a while."""

    def __init__(self, settings: HttpHook, clock: Callable[[], float] = time.time) -> None:
        import_module("h11")  # Not at the first question.
        self.settings = settings
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, Known]] = OrderedDict()
        """Accepting answers, and until when they are used again."""
        self._open = 0
        self._tls = _context(settings) if settings.url.startswith("https:") else None

    async def ask(self, question: Question) -> Known:
        """Return the service's answer; raise HookFailed if there is no usable one."""
        import h11  # A broker that asks no service does not load it.

        proof = self._proof(question)
        until, known = self._known.get(proof, (0.0, None))
        now = self._clock()
        if known is not None and now < until <= now + self.settings.cache_s:
            return known
        if self._open >= self.settings.requests_max:
            raise HookBusy("too many requests are open")
        self._open += 1
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                answer = await self._post(question.body())
        except TimeoutError:
            raise HookFailed(f"no answer within {self.settings.timeout_s:g} s") from None
        except (OSError, ssl.SSLError, h11.RemoteProtocolError) as error:
            raise HookFailed(str(error) or type(error).__name__) from None
        finally:
            self._open -= 1
        known = Known(answer, None if answer.expires_s is None else now + answer.expires_s)
        if answer.allow and self.settings.cache_s:
            kept_s = min(self.settings.cache_s, answer.expires_s or self.settings.cache_s)
            self._known[proof] = (now + kept_s, known)
            self._known.move_to_end(proof)
            if len(self._known) > ANSWERS_KEPT_MAX:
                self._known.popitem(last=False)
        return known

    async def _post(self, body: bytes) -> Answer:
        import h11

        parts = urlsplit(self.settings.url)
        host, port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            connection = h11.Connection(h11.CLIENT)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            request = h11.Request(
                method="POST",
                target=target,
                headers=[
                    ("Host", parts.netloc.rpartition("@")[2]),
                    ("Content-Type", "application/json"),
                    ("Content-Length", str(len(body))),
                    ("Connection", "close"),
                ],
            )
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            await writer.drain()
            return await _answer(connection, reader)
        finally:
            writer.close()

    def _proof(self, question: Question) -> bytes:
        """Return a keyed hash of user, password and client id: the rights may depend on each."""
        digest = blake2b(key=self._key, digest_size=32)
        for part in (question.user.encode(), question.password, question.client.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    import h11

    status, body = 0, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(16_384))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES_MAX:
                raise HookFailed(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return _read(status, body)
        elif not isinstance(event, h11.InformationalResponse):
            raise HookFailed("the connection ended before the answer did")


def _read(status: int, body: bytes) -> Answer:
    if status in REFUSED:
        return Answer(allow=False)
    if status != 200:
        raise HookFailed(f"status {status}")
    try:
        answer = msgspec.json.decode(body, type=Answer)
        if answer.grants is not None:
            check_grants(answer.grants)
    except (msgspec.MsgspecError, InputError) as error:
        raise HookFailed(f"the answer cannot be used: {error}") from None
    if answer.expires_s is not None and answer.expires_s <= 0:
        return Answer(allow=False)
    return answer


def check_hook(settings: HttpHook) -> None:
    """Refuse an address to which passwords must not be sent."""
    if not settings.url:
        return
    parts = urlsplit(settings.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"access.http.url = {settings.url}: valid is https://HOST/PATH")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise InputError(
            f"access.http.url = {settings.url}: passwords would travel unencrypted; use https, "
            f"or a service on loopback"
        )
    if parts.scheme == "https":
        _context(settings)


def _context(settings: HttpHook) -> ssl.SSLContext:
    if settings.ca:
        check_readable(settings.ca, "access.http.ca")
    try:
        return ssl.create_default_context(cafile=settings.ca or None)
    except ssl.SSLError as error:
        raise InputError(
            f"access.http.ca = {settings.ca}: holds no certificate in PEM ({error.reason or 'PEM'})"
        ) from None
