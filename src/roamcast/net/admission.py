"""Authenticates clients by certificate, password, token or SCRAM, and decides whether anonymous clients are
accepted.

The order is fixed. A client that gives a user name must prove it, also where no name is needed: a mistyped
password must not admit the client under another identity. TLS verifies a certificate before the first byte of
MQTT. A client with neither is anonymous.

The proof of a connection is kept as long as the connection lasts (`Admitted.proof`): when users, keys or
certificates change, `objection` says whether that still holds.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from roamcast.config.sections import Access, Config, Listener
from roamcast.errors import InputError
from roamcast.mqtt import scram
from roamcast.mqtt.codec.packets import Connect
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.access import Grants, Identity
from roamcast.net.clients import ConnectionRefused
from roamcast.net.complaints import Complaints
from roamcast.net.hook import Hook, HookBusy, HookFailed, Question
from roamcast.net.logs import fields
from roamcast.net.passwords import Outcome, Verifier
from roamcast.net.tls import PeerCertificate, certificate_name
from roamcast.net.tokens import TokenRefused, is_token, load_keys
from roamcast.net.users import NAME_CHARACTERS_MAX, check_name, read_users, verifier_of

log = logging.getLogger("roamcast.clients")

REASONS = {
    Outcome.REFUSED: Reason.BAD_USER_NAME_OR_PASSWORD,
    Outcome.WAIT: Reason.CONNECTION_RATE_EXCEEDED,
    Outcome.BUSY: Reason.SERVER_BUSY,
}
FAILED_LOGIN_AGAIN_S = 10.0
FAILED_LOGIN_PAUSE_MAX_S = 3600.0
NAMES_LOGGED_MAX = 20
"""Number of failed logins from one address that are logged with their users."""

Ask = Callable[[bytes], Awaitable[bytes]]
"""Sends a challenge to the client, and returns its answer."""


class Proof(NamedTuple):
    """How a client authenticated."""

    kind: str
    """"password", "token", "service", "certificate" or "nothing"."""
    user: str = ""
    by: str = ""
    """What the proof was checked against: the stored password, or the fingerprint of a key."""


NOTHING = Proof("nothing")


class Admitted(NamedTuple):
    """An admitted client."""

    identity: Identity
    proof: Proof = NOTHING
    expires_at: float | None = None
    """Expiry of the admission, Unix time."""
    answer: bytes = b""
    """Authentication data in the CONNACK for a client that authenticates step by step."""


class _Login(NamedTuple):
    user: str
    proof: Proof
    grants: Grants | None = None
    expires_at: float | None = None
    answer: bytes = b""


class Admission:
    """Authenticates clients; a broker has one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._users = users_of(config)
        self._verifier = Verifier(self._users, config.access)
        self._tokens = load_keys(config.access.jwt)
        self._hook = Hook(config.access.http) if config.access.http.url else None
        self._decoy_key = secrets.token_bytes(32)
        self._complaints = Complaints(FAILED_LOGIN_AGAIN_S, FAILED_LOGIN_PAUSE_MAX_S)
        self.failed_logins = 0
        """Number of failed logins since the process began."""

    def reconfigure(self, config: Config) -> tuple[str, ...]:
        """Apply new users and settings; return the names of users that no longer exist.

        If they cannot be read, InputError is raised and nothing changes.
        """
        users, access = users_of(config), config.access
        tokens = load_keys(access.jwt)
        if access.http != self._config.access.http:
            self._hook = Hook(access.http) if access.http.url else None
        gone = tuple(name for name in self._users if name not in users)
        if _asks_others(access):
            gone = ()
        self._verifier.reconfigure(users, access)
        self._config, self._users, self._tokens = config, users, tokens
        return gone

    def close(self) -> None:
        self._verifier.close()

    # --- coming in ---

    def must_ask(self, connect: Connect) -> bool:
        """True if the client says who it is in a way that takes time to check."""
        names_itself = connect.username is not None or connect.password is not None
        return connect.authentication_method is not None or (names_itself and self._config.access.has_logins)

    async def identify(
        self,
        listener: Listener,
        connect: Connect,
        client: str,
        address: str,
        certificate: PeerCertificate | None = None,
        ask: Ask | None = None,
    ) -> Admitted:
        """Authenticate the sender of a CONNECT with this client id and address, or raise `ConnectionRefused`.

        `certificate` is the result of `getpeercert()` for an encrypted connection.
        """
        name = certificate_name(certificate, listener.certificate_name)
        login: _Login | None = None
        if connect.authentication_method is not None:
            login = await self._exchange(connect, address, ask)
        elif self.must_ask(connect):
            login = await self._log_in(connect, client, address)
        if login is not None:
            identity = Identity(client, login.user, name, self._config.site, login.grants)
            return Admitted(identity, login.proof, login.expires_at, login.answer)
        if name:
            return Admitted(Identity(client, "", name, self._config.site), Proof("certificate", name))
        if not self._config.allows_anonymous(listener):
            raise ConnectionRefused(Reason.NOT_AUTHORIZED, "this listener needs a user name or a certificate")
        return Admitted(Identity(client))

    async def log_in(self, user: str, password: str, address: str) -> Admitted:
        """Authenticate a name and password given over HTTP; raise ConnectionRefused if they are wrong."""
        if not self._config.access.has_logins:
            raise ConnectionRefused(Reason.NOT_AUTHORIZED, "nobody can log in here; set access.users")
        connect = Connect(5, "", username=user, password=password.encode())
        login = await self._log_in(connect, "", address)
        return Admitted(Identity("", login.user, "", self._config.site), login.proof, login.expires_at)

    async def _log_in(self, connect: Connect, client: str, address: str) -> _Login:
        user, password = connect.username or "", connect.password or b""
        if self._tokens is not None and is_token(connect.password):
            return self._read_token(user, password, address)
        if self._hook is not None and not self._verifier.knows(user):
            question = Question(user, password, client, address, self._config.id)
            return await self._ask_service(self._hook, question)
        outcome = await self._verifier.verify(user, password, address)
        if outcome is not Outcome.ACCEPTED:
            raise self._refusal(REASONS[outcome], outcome.value, user, address)
        return _Login(user, Proof("password", user, self._verifier.stored_of(user) or ""))

    def _refusal(
        self, reason: Reason, told: str, user: str, address: str, why: str = ""
    ) -> ConnectionRefused:
        """Count a failed login, and log it unless one was logged recently. The client is not told the
        reason."""
        self.failed_logins += 1
        why = why or told
        name = user[:NAME_CHARACTERS_MAX]
        # A client that invents many names must not fill the log with them.
        is_named = self._complaints.count(address) < NAMES_LOGGED_MAX
        if self._complaints.is_due(address, f"{name} {why}" if is_named else "and others"):
            log.warning(
                "login of user %r from %s failed: %s", name, address, why,
                extra=fields(event="login_failed", user=name, address=address, reason=why),
            )  # fmt: skip
        return ConnectionRefused(reason, told)

    def _must_wait(self, user: str, address: str) -> ConnectionRefused | None:
        if not self._verifier.back_off.must_wait(user, address):
            return None
        return self._refusal(REASONS[Outcome.WAIT], Outcome.WAIT.value, user, address)

    def _failed(self, user: str, address: str, why: str) -> ConnectionRefused:
        self._verifier.back_off.failed(user, address)
        return self._refusal(Reason.BAD_USER_NAME_OR_PASSWORD, Outcome.REFUSED.value, user, address, why)

    # --- tokens ---

    def _read_token(self, user: str, text: bytes, address: str) -> _Login:
        assert self._tokens is not None
        try:
            token = self._tokens.read(text)
            if user not in ("", token.user):
                raise TokenRefused(f"the token is that of user {token.user!r}")
        except TokenRefused as error:
            # Signatures cannot be guessed, so tries need no slowing down.
            raise self._refusal(
                Reason.BAD_USER_NAME_OR_PASSWORD, "the token is not accepted", user, address, str(error)
            ) from None
        return _Login(token.user, Proof("token", token.user, token.key), token.grants, token.expires_at)

    # --- a service ---

    async def _ask_service(self, hook: Hook, question: Question) -> _Login:
        user, address = question.user, question.address
        try:
            check_name(user)
        except InputError:
            raise self._failed(user, address, "no user can have this name") from None
        obstacle = self._must_wait(user, address)
        if obstacle is not None:
            raise obstacle
        back_off = self._verifier.back_off
        back_off.checking(user, address, +1)
        try:
            answer, expires_at = await hook.ask(question)
        except HookBusy as error:
            raise self._refusal(Reason.SERVER_BUSY, "try again", user, address, str(error)) from None
        except HookFailed as error:
            why = f"the service at access.http.url could not be asked: {error}"
            raise self._refusal(
                Reason.SERVER_UNAVAILABLE, "users cannot be checked now", user, address, why
            ) from None
        finally:
            back_off.checking(user, address, -1)
        if not answer.allow:
            raise self._failed(user, address, "the service at access.http.url refuses this user")
        back_off.succeeded(user, address)
        return _Login(user, Proof("service", user, hook.settings.url), answer.grants, expires_at)

    # --- step by step (MQTT 5.0, section 4.12) ---

    async def _exchange(self, connect: Connect, address: str, ask: Ask | None) -> _Login:
        method = connect.authentication_method
        if method != scram.METHOD or not self._config.access.users or ask is None:
            raise ConnectionRefused(
                Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not known here"
            )
        return await self._scram(connect.authentication_data or b"", connect.username, address, ask)

    async def prove_again(self, identity: Identity, first: bytes, address: str, ask: Ask) -> Admitted:
        """Re-authenticate a client by SCRAM as the same user."""
        login = await self._scram(first, identity.user, address, ask)
        return Admitted(identity, login.proof, login.expires_at, login.answer)

    async def _scram(self, first: bytes, expected: str | None, address: str, ask: Ask) -> _Login:
        try:
            exchange = scram.ServerExchange(first, secrets.token_bytes(scram.NONCE_BYTES))
            user = exchange.user
            obstacle = self._must_wait(user, address)
            if obstacle is not None:
                raise obstacle
            stored = self._verifier.stored_of(user)
            known = verifier_of(stored) if stored is not None else None
            challenge = exchange.challenge(known or scram.decoy(user, self._decoy_key))
            proof = await ask(challenge)
            # Others may have failed meanwhile: many tries that are begun at once are not one.
            if self._verifier.back_off.has_failed_often(user, address):
                raise self._refusal(REASONS[Outcome.WAIT], Outcome.WAIT.value, user, address)
            answer = exchange.finish(proof)
        except scram.ScramError as error:
            raise ConnectionRefused(Reason.NOT_AUTHORIZED, f"{scram.METHOD}: {error}") from None
        is_same = stored is not None and self._verifier.stored_of(user) == stored
        if known is None or answer is None or not is_same or expected not in (None, "", user):
            why = "no SCRAM verifier; `roamcast user add --scram` makes one" if stored and not known else ""
            raise self._failed(user, address, why)
        self._verifier.back_off.succeeded(user, address)
        return _Login(user, Proof("password", user, stored or ""), answer=answer)

    # --- afterwards ---

    def objection(self, admitted: Admitted, listener: Listener) -> str:
        """Why a connected client would be refused now; "" if it would be admitted."""
        kind, user, by = admitted.proof
        if kind == "password":
            stored = self._verifier.stored_of(user)
            return "" if stored == by else "its password was changed" if stored else "its user was removed"
        if kind == "token" and not (self._tokens is not None and self._tokens.has_key(by)):
            return "the key of its token was removed"
        if kind == "service" and not (self._hook is not None and self._hook.settings.url == by):
            return "the service that accepted it is not asked any more"
        if kind == "nothing" and not self._config.allows_anonymous(listener):
            return "anonymous clients are not allowed any more"
        return ""

    def unknown(self, owners: list[str]) -> tuple[str, ...]:
        """Return the owners of sessions that are users of this broker but missing from its file of users.

        Empty if others can also authenticate users: a service, or brokers of the realm.
        """
        access = self._config.access
        if not access.users or access.realm or _asks_others(access):
            return ()
        prefix = f"{self._config.site}/user:"
        return tuple(
            owner
            for owner in owners
            if owner.startswith(prefix) and not self._verifier.knows(owner.removeprefix(prefix))
        )

    def owners(self, users: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(Identity("", user, site=self._config.site).owner for user in users)


def _asks_others(access: Access) -> bool:
    """True if a user need not be in the file of users."""
    return bool(access.jwt.keys or access.http.url)


def users_of(config: Config) -> dict[str, str]:
    return read_users(config.access.users) if config.access.users else {}
