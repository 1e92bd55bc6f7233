"""Access to the live view and its operator actions: users of the broker, tokens, readers on loopback.

Users log in with the password that they use for MQTT, and get a cookie that is valid until the process ends.
Programs send a token, whose hash is in the configuration. The rights of a user or token are looked up at each
request, so that a reload (SIGHUP) takes effect at once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple, TypeVar

import msgspec

from roamcast.config.addresses import is_loopback
from roamcast.config.sections import Config
from roamcast.daemon.http import JSON, Answer, Problem, Request, as_json
from roamcast.net.admission import Admitted
from roamcast.net.clients import ConnectionRefused

COOKIE = "roamcast_session"
SESSION_S = 12 * 3600
SESSIONS_MAX = 1000
TOKEN_CHARACTERS_MAX = 512

Body = TypeVar("Body", bound=msgspec.Struct)


class Reader(NamedTuple):
    """The user or program behind a request."""

    user: str | None
    may_read: bool
    may_operate: bool = False
    sees_names: bool = False


class Credentials(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    password: str


class LoggedIn(NamedTuple):
    user: str
    until_s: float
    admitted: Admitted


class Gate:
    def __init__(
        self,
        config: Callable[[], Config],
        log_in: Callable[[str, str, str], Awaitable[Admitted]],
        objection: Callable[[Admitted], str],
    ) -> None:
        """`log_in` checks user, password and address; `objection` says why a login is no longer valid."""
        self._config = config
        self._log_in = log_in
        self._objection = objection
        self._sessions: OrderedDict[str, LoggedIn] = OrderedDict()
        """Sessions by the hash of their cookies."""

    def who(self, request: Request) -> Reader:
        """Identify the reader behind a request, and the reader's rights."""
        authorization = request.headers.get("authorization", "")
        if authorization:
            return self._by_token(authorization)
        found = self._by_cookie(request)
        return found if found is not None else self._nobody(request)

    def _by_token(self, authorization: str) -> Reader:
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= TOKEN_CHARACTERS_MAX:
            raise Problem(HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer TOKEN")
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        found = None
        for one in self._config().view.tokens:
            # All hashes are compared, so that the response time reveals nothing.
            if hmac.compare_digest(one.sha256.replace(":", "").lower(), digest):
                found = one
        if found is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "unknown token")
        may_operate = found.may == "operate"
        return Reader(found.name, True, may_operate, may_operate or self._shows_names)

    @property
    def _shows_names(self) -> bool:
        return self._config().view.names == "readers"

    def _by_cookie(self, request: Request) -> Reader | None:
        key = _cookie_key(request)
        session = self._sessions.get(key) if key else None
        if session is None:
            return None
        if time.monotonic() > session.until_s or self._objection(session.admitted):
            del self._sessions[key]
            return None
        view = self._config().view
        may_operate = _is_among(session.user, view.operators)
        may_read = may_operate or _is_among(session.user, view.readers)
        return Reader(session.user, may_read, may_operate, may_operate or (may_read and self._shows_names))

    def _nobody(self, request: Request) -> Reader:
        config = self._config()
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        is_here = is_loopback(config.metrics.address) and is_loopback(request.host)
        # A proxy on this machine forwards requests of people elsewhere.
        is_passed_on = "x-forwarded-for" in request.headers or "forwarded" in request.headers
        is_local = is_here and not is_passed_on and is_loopback(host.strip("[]") or "localhost")
        may_read = is_local and config.view.anonymous == "auto"
        return Reader(None, may_read, sees_names=may_read and self._shows_names)

    # --- logging in ---

    async def log_in(self, request: Request) -> Answer:
        credentials = read_body(request, Credentials)
        try:
            admitted = await self._log_in(credentials.user, credentials.password, request.host)
        except ConnectionRefused as refused:
            raise Problem(HTTPStatus.UNAUTHORIZED, str(refused)) from None
        user = admitted.identity.user
        view = self._config().view
        if not (_is_among(user, view.readers) or _is_among(user, view.operators)):
            raise Problem(HTTPStatus.FORBIDDEN, "this user may not look at the network (view.readers)")
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = LoggedIn(user, time.monotonic() + SESSION_S, admitted)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return as_json(
            self.told(self._by_name(user)), HTTPStatus.OK, ("Set-Cookie", _cookie(cookie, SESSION_S, request))
        )

    def _by_name(self, user: str) -> Reader:
        may_operate = _is_among(user, self._config().view.operators)
        return Reader(user, True, may_operate, may_operate or self._shows_names)

    def log_out(self, request: Request) -> Answer:
        self._sessions.pop(_cookie_key(request), None)
        return as_json({"done": True}, HTTPStatus.OK, ("Set-Cookie", _cookie("", 0, request)))

    def told(self, reader: Reader) -> dict[str, object]:
        """Return what a page may know about its reader."""
        return {
            "user": reader.user,
            "may_operate": reader.may_operate,
            "login_needed": not reader.may_read,
            "pseudonyms": not reader.sees_names,
        }


def _cookie(value: str, seconds: int, request: Request) -> str:
    secure = "; Secure" if request.is_secure else ""
    return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _cookie_key(request: Request) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return _digest(found.value) if found is not None else ""


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def _is_among(user: str, patterns: Sequence[str]) -> bool:
    return any(
        user.startswith(one.removesuffix("*")) if one.endswith("*") else user == one for one in patterns
    )


def read_body(request: Request, kind: type[Body]) -> Body:
    """Read the body of a request as JSON. Pages of other sites cannot send this content type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type: application/json")
    try:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"invalid body: {error}") from None
