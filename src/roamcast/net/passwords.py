"""Checks passwords without delaying other clients, and slows down guessing.

Checking an argon2 hash is slow on purpose. It is done on a few threads beside the event loop, with a bounded
queue before them. A proved password is cached for a while under a keyed hash, so that a thousand clients that
reconnect at once cost a thousand dict lookups. After failures a client has to wait, for longer each time; an
unknown user takes as long as a known one. Many honest clients may share an address with one that guesses:
they are still accepted, a few each second.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv6Address

from roamcast.config.sections import Access
from roamcast.net.users import NAME_CHARACTERS_MAX, hash_of, hasher

ADDRESSES_KEPT_MAX = 10_000
"""Number of addresses (and pairs of address and user) whose failures or successes are remembered."""

FAILURES_BY_ANY_USER = 20
"""Failed logins allowed per address, as a multiple of those per user: many users may share an address."""


class Outcome(Enum):
    """Result of a try; everything but `ACCEPTED` means no."""

    ACCEPTED = "accepted"
    REFUSED = "bad user name or password"
    WAIT = "too many failed logins from this address; wait"
    BUSY = "too many passwords are being checked; try again"


class Failures:
    """Failed tries by key, and until when each key has to wait."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """The number of failures, and when the last one happened."""

    def must_wait(self, key: str, now: float, allowed: int, settings: Access) -> bool:
        failures, last = self._known.get(key, (0, 0.0))
        if failures < allowed:
            return False
        # The exponent is bounded too: 2 to the power of several thousand does not fit into a float.
        pause_s = settings.backoff_s * 2.0 ** min(failures - allowed, 64)
        return now < last + min(pause_s, settings.backoff_max_s)

    def add(self, key: str, now: float, settings: Access) -> None:
        failures, last = self._known.pop(key, (0, now))
        if now - last > settings.backoff_max_s:
            failures = 0
        self._known[key] = (failures + 1, now)
        if len(self._known) > ADDRESSES_KEPT_MAX:
            self._known.popitem(last=False)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)


class BackOff:
    """Slows down guessing: for each pair of address and user, and for each address.

    A pair has to wait longer after each failure. An address with many failures is not locked out, since
    others may share it: users who have logged in from there before are not delayed, and all others together
    get a few tries a second.
    """

    def __init__(self, settings: Access, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._clock = clock
        self._by_user = Failures()
        self._by_address = Failures()
        self._welcome: OrderedDict[str, None] = OrderedDict()
        """Pairs that have logged in successfully."""
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Addresses with many failures: the number of tries left, and when it was computed."""
        self._checking: Counter[str] = Counter()
        """Tries being checked, by pair. They count like failures; otherwise a guesser could make all of them
        before the first one fails."""

    def must_wait(self, user: str, address: str) -> bool:
        """Return true if this try is refused without a check."""
        settings, now = self.settings, self._clock()
        network, pair = _network_and_pair(user, address)
        if self._checking[pair] >= settings.failures_max or self.has_failed_often(user, address):
            return True
        allowed = settings.failures_max * FAILURES_BY_ANY_USER
        if pair in self._welcome or not self._by_address.must_wait(network, now, allowed, settings):
            return False
        return not self._takes_try(network, now)

    def has_failed_often(self, user: str, address: str) -> bool:
        """Return true if this pair of address and user has to wait."""
        settings, (_, pair) = self.settings, _network_and_pair(user, address)
        return self._by_user.must_wait(pair, self._clock(), settings.failures_max, settings)

    def checking(self, user: str, address: str, change: int) -> None:
        """Count a try whose check begins (+1) or is over (-1)."""
        _, pair = _network_and_pair(user, address)
        self._checking[pair] += change
        if not self._checking[pair]:
            del self._checking[pair]

    def _takes_try(self, network: str, now: float) -> bool:
        """Take one of the tries that an address with many failures has: `failures_max` each `backoff_s`."""
        most = float(self.settings.failures_max)
        left, counted_at = self._tries.pop(network, (0.0, now))
        left = min(most, left + (now - counted_at) * most / self.settings.backoff_s)
        is_left = left >= 1.0
        self._tries[network] = (left - 1.0 if is_left else left, now)
        if len(self._tries) > ADDRESSES_KEPT_MAX:
            self._tries.popitem(last=False)
        return is_left

    def succeeded(self, user: str, address: str) -> None:
        _, pair = _network_and_pair(user, address)
        self._by_user.forget(pair)
        self._welcome[pair] = None
        self._welcome.move_to_end(pair)
        if len(self._welcome) > ADDRESSES_KEPT_MAX:
            self._welcome.popitem(last=False)

    def failed(self, user: str, address: str) -> None:
        network, pair = _network_and_pair(user, address)
        self._by_user.add(pair, self._clock(), self.settings)
        self._by_address.add(network, self._clock(), self.settings)


def _network_and_pair(user: str, address: str) -> tuple[str, str]:
    network = network_of(address)
    # A stranger chooses these names and their number; no user's name is longer.
    return network, f"{network} {user[:NAME_CHARACTERS_MAX]}"


class Verifier:
    """Checks passwords of users; one per broker, used from its event loop."""

    def __init__(
        self, users: Mapping[str, str], settings: Access, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, float] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[bool]] = {}
        self.back_off = BackOff(settings, clock)
        self.checks = 0
        """Number of hashes computed."""
        self.settings = settings
        self._threads = _new_threads(settings)
        self._decoy = ""
        """Checked for unknown users, so that a refusal does not tell who exists; not needed without users."""
        self._set_users(users)

    def _set_users(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        if users and not self._decoy:
            self._decoy = _decoy_like(next(iter(users.values())))

    def reconfigure(self, users: Mapping[str, str], settings: Access) -> None:
        """Use other users and settings. Passwords proved against a removed hash must be proved again."""
        if settings.verifications_max != self.settings.verifications_max:
            self._threads.shutdown(wait=False)
            self._threads = _new_threads(settings)
        self.settings = self.back_off.settings = settings
        self._set_users(users)

    def knows(self, user: str) -> bool:
        return user in self._users

    def stored_of(self, user: str) -> str | None:
        """Return the stored hash of a user's password."""
        return self._users.get(user)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def verify(self, user: str, password: bytes, address: str) -> Outcome:
        """Check a user's password; the address is that of the client."""
        stored = self._users.get(user, self._decoy)
        proof = self._proof(user, password, stored)
        if self._verified.get(proof, 0.0) > self._clock():
            self._verified.move_to_end(proof)
            return Outcome.ACCEPTED
        running = self._running.get(proof)
        if running is None:
            if self.back_off.must_wait(user, address):
                return Outcome.WAIT
            settings = self.settings
            if len(self._running) >= settings.verifications_max + settings.verifications_waiting_max:
                return Outcome.BUSY
            running = self._start(proof, user, address, stored, password)
        # Shielded, because others may wait for the same answer when this client goes away.
        right = await asyncio.shield(running)
        if right and self._users.get(user) == stored:
            self.back_off.succeeded(user, address)
            self._remember(proof)
            return Outcome.ACCEPTED
        self.back_off.failed(user, address)
        return Outcome.REFUSED

    def _start(
        self, proof: bytes, user: str, address: str, stored: str, password: bytes
    ) -> asyncio.Future[bool]:
        def finish(_: asyncio.Future[bool]) -> None:
            del self._running[proof]
            self.back_off.checking(user, address, -1)

        self.checks += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, is_password, stored, password)
        self._running[proof] = running
        self.back_off.checking(user, address, +1)
        running.add_done_callback(finish)
        return running

    def _proof(self, user: str, password: bytes, stored: str) -> bytes:
        """Return a keyed hash of the credentials. It includes the stored hash, so a new password
        invalidates it."""
        name = user.encode("utf-8", "surrogatepass")
        digest = blake2b(key=self._key, digest_size=32)
        for part in (name, stored.encode(), password):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()

    def _remember(self, proof: bytes) -> None:
        if not self.settings.verified_max:
            return
        self._verified[proof] = self._clock() + self.settings.verified_s
        if len(self._verified) > self.settings.verified_max:
            self._verified.popitem(last=False)


def _new_threads(settings: Access) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(settings.verifications_max, thread_name_prefix="password")


def is_password(stored: str, password: bytes) -> bool:
    """Check a password against a hash; slow on purpose."""
    from argon2.exceptions import Argon2Error, InvalidHash  # A broker without users does not load it.

    try:
        return hasher().verify(hash_of(stored), password)
    except (Argon2Error, InvalidHash):
        return False


def _decoy_like(stored: str) -> str:
    """Return a hash of an unknown password that takes as long to check as the users' own."""
    from argon2 import PasswordHasher, extract_parameters

    return PasswordHasher.from_parameters(extract_parameters(hash_of(stored))).hash(secrets.token_bytes(32))


@lru_cache(ADDRESSES_KEPT_MAX)
def network_of(address: str) -> str:
    """Return the network that counts as one address: an IPv6 client has a whole /64."""
    if ":" not in address:
        return address  # An IPv4 address has only one form.
    try:
        ip = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Address(int(ip) >> 64 << 64))
