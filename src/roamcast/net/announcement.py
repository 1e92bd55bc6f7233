"""Announcements of brokers on the local network, and how they are verified.

An announcement is one datagram: the broker's id, the address of its link listener, and an HMAC with the
secret that all brokers of the network share. It only makes the receiver dial that address, where both ends
authenticate as over any link. Against replay it carries the start time of the broker, a number that rises
with every announcement, and the time. Nothing unsigned is remembered, and the memory is limited.
"""

from __future__ import annotations

import hashlib
import hmac
import re

import msgspec

from roamcast.config.addresses import is_loopback, split_endpoint
from roamcast.config.sections import NAME_PATTERN, Discovery
from roamcast.errors import InputError

MAGIC = b"roamfind\x00\x01"
"""Marker with the version of the format."""
SIGNATURE_BYTES = 32
DATAGRAM_BYTES_MAX = 1024
BACK_AFTER = 3
"""Intervals of silence after which a broker that is heard again is reported as new."""


class Announcement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    network: str
    id: str
    address: str
    """HOST:PORT of its link listener."""
    started_ns: int
    """When its process began, by its own clock."""
    number: int
    """Rises by one with each announcement of this process."""
    sent_at: float
    """Time of sending, by the sender's clock."""


class Unbelieved(Exception):
    """Raised if an announcement is not believed; the text is the reason, in one line."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Announcement).decode


def sign(announcement: Announcement, secret: str) -> bytes:
    """Encode and sign an announcement."""
    body = _encode(announcement)
    return MAGIC + _signature(body, secret) + body


def _signature(body: bytes, secret: str) -> bytes:
    return hmac.new(secret.encode(), MAGIC + body, hashlib.sha256).digest()


class Sighting(msgspec.Struct):
    """A discovered broker."""

    announcement: Announcement
    heard_at: float


class Sightings:
    """Brokers that this broker has heard of. `now` is a clock that never goes back."""

    def __init__(self, id: str, network: str, settings: Discovery) -> None:
        self.id = id
        self.network = network
        self.settings = settings
        self.brokers: dict[str, Sighting] = {}

    def take(self, now: float, clock: float, datagram: bytes, secret: str) -> Announcement | None:
        """Return the sighting if something is new: the broker, its address, its process, or that it is
        heard again."""
        found = self._verified(clock, datagram, secret)
        if found is None:
            return None
        known = self.brokers.get(found.id)
        if known is None and len(self.brokers) >= self.settings.brokers_max:
            raise Unbelieved(f"more brokers than discovery.brokers_max, {self.settings.brokers_max}")
        if known is not None:
            before = known.announcement
            if (found.started_ns, found.number) <= (before.started_ns, before.number):
                return None  # An old announcement: delayed, or replayed by somebody else.
            is_back = now - known.heard_at > BACK_AFTER * self.settings.interval_s
            is_other = (found.started_ns, found.address) != (before.started_ns, before.address)
            self.brokers[found.id] = Sighting(found, now)
            return found if is_back or is_other else None
        self.brokers[found.id] = Sighting(found, now)
        return found

    def _verified(self, clock: float, datagram: bytes, secret: str) -> Announcement | None:
        """Return the announcement; None if the datagram is none, or not for this network."""
        head, body = datagram[: len(MAGIC) + SIGNATURE_BYTES], datagram[len(MAGIC) + SIGNATURE_BYTES :]
        if not head.startswith(MAGIC) or len(datagram) > DATAGRAM_BYTES_MAX:
            return None
        try:
            found = _decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        if found.network != self.network:
            return None
        if not hmac.compare_digest(head[len(MAGIC) :], _signature(body, secret)):
            raise Unbelieved("it is not signed with the secret of this network")
        if found.id == self.id:
            return None
        allowed_s = self.settings.clock_error_max_s
        if allowed_s is not None and not abs(found.sent_at - clock) <= allowed_s:
            raise Unbelieved(
                f"it is old, or its clock differs from that of this machine by more than {allowed_s:g} s "
                f"(discovery.clock_error_max_s)"
            )
        self._check_address(found, bool(secret))
        return found

    def _check_address(self, found: Announcement, is_secret: bool) -> None:
        try:
            host, port = split_endpoint(found.address)
        except InputError as error:
            raise Unbelieved(str(error)) from None
        if not re.fullmatch(NAME_PATTERN, found.id) or not port or not (is_secret or is_loopback(host)):
            raise Unbelieved("without a secret, only brokers on this machine are looked for")

    def silent(self, now: float) -> list[str]:
        """Brokers that have been silent for too long."""
        limit = now - self.settings.forget_s
        return [broker for broker, seen in self.brokers.items() if seen.heard_at < limit]
