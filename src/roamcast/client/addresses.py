"""Addresses of brokers: `127.0.0.1:1883`, `mqtt://host`, `mqtts://host:8883`, `b=mqtt://host:1883`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from roamcast.errors import InputError

PORTS = {"mqtt": 1883, "mqtts": 8883}
FORM = re.compile(
    r"(?:(?P<broker>[^=/:@\s]+)=)?(?:(?P<scheme>\w+)://)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:/\[\]@?#]+))(?::(?P<port>\d{1,5}))?/?"
)


class Address(NamedTuple):
    """Address of a broker, with its id if known."""

    host: str
    port: int
    is_tls: bool = False
    broker: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, is_tls: bool = False) -> Address:
    """Parse an address; `is_tls` applies to addresses without a scheme."""
    found = FORM.fullmatch(text.strip())
    scheme = (found["scheme"] or ("mqtts" if is_tls else "mqtt")) if found else ""
    if found is None or scheme not in PORTS or int(found["port"] or 0) > 65_535:
        raise InputError(
            f"address {text!r}: valid is [BROKER=][mqtt://|mqtts://]HOST[:PORT], as in mqtt://127.0.0.1:1883"
        )
    port = int(found["port"] or PORTS[scheme])
    return Address(found["six"] or found["host"], port, scheme == "mqtts", found["broker"] or "")


class AddressBook:
    """The brokers a client knows, in order, and which one it is at."""

    def __init__(self, texts: str | Iterable[str], is_tls: bool) -> None:
        given = [texts] if isinstance(texts, str) else list(texts)
        if not given:
            raise InputError("no address: give at least one, as in mqtt://127.0.0.1:1883")
        self._is_tls = is_tls
        self.addresses = [parse_address(text, is_tls) for text in given]
        self.current = self.addresses[0]
        self._referred: Address | None = None
        """Address that a broker referred the client to, not tried yet."""

    def find(self, text: str) -> Address:
        """Find an address by broker id, or parse it as a new address."""
        named = self.known(text)
        if named is not None:
            return named
        address = parse_address(text, self._is_tls)
        for known in self.addresses:
            if not address.broker and known[:3] == address[:3]:
                return known
        return address

    def known(self, broker: str) -> Address | None:
        """Return the configured address of this broker."""
        return next((address for address in self.addresses if address.broker == broker), None)

    def refer(self, reference: str) -> bool:
        """Take the first address that a broker refers to as the next one; False if it may not be used.

        A client with a TLS connection never follows a referral to an address without TLS.
        """
        try:
            address = self.find(reference.split()[0]) if reference.split() else None
        except InputError:
            address = None
        if address is None or (self.current.is_tls and not address.is_tls):
            return False
        self._referred = address
        return True

    def go_on(self) -> Address:
        """Advance to the address that a broker referred to, or to the next one, cyclically."""
        if self._referred is not None:
            self.current, self._referred = self._referred, None
            return self.current
        place = self.addresses.index(self.current) if self.current in self.addresses else -1
        self.current = self.addresses[(place + 1) % len(self.addresses)]
        return self.current
