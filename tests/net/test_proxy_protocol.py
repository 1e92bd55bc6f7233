"""Headers of the PROXY protocol: what they say, and which are refused."""

from __future__ import annotations

import socket

import pytest

from roamcast.errors import InputError
from roamcast.net.proxy_protocol import SIGNATURE, HeaderRefused, read_networks, rest_length, source_in


def header(command: int = 0x21, family: int = 0x11, rest: bytes = b"") -> tuple[bytes, bytes]:
    return SIGNATURE + bytes((command, family)) + len(rest).to_bytes(2, "big"), rest


V4 = socket.inet_aton("198.51.100.7") + socket.inet_aton("10.0.0.1") + b"\x01\x00\x07\x5b"
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") * 2 + b"\x01\x00\x07\x5b"


@pytest.mark.parametrize(
    ("family", "rest", "source"),
    [
        (0x11, V4, ("198.51.100.7", 256)),
        (0x11, V4 + b"\x04\x00\x01x", ("198.51.100.7", 256)),
        (0x21, V6, ("2001:db8::7", 256)),
    ],
)
def test_the_address_of_the_client(family: int, rest: bytes, source: tuple[str, int]) -> None:
    start, rest = header(family=family, rest=rest)
    assert rest_length(start) == len(rest)
    assert source_in(start, rest) == source


def test_a_health_check_has_no_other_address() -> None:
    start, rest = header(command=0x20, family=0)
    assert rest_length(start) == 0
    assert source_in(start, rest) is None


@pytest.mark.parametrize(
    "start",
    [
        b"PROXY TCP4 1.2.3",
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
        header(command=0x31)[0],
        header(command=0x22)[0],
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_other_beginnings_are_refused(start: bytes) -> None:
    with pytest.raises(HeaderRefused):
        rest_length(start)


@pytest.mark.parametrize(("family", "rest"), [(0x11, V4[:8]), (0x12, V4), (0x31, V4), (0x00, b"")])
def test_addresses_that_are_none_are_refused(family: int, rest: bytes) -> None:
    with pytest.raises(HeaderRefused):
        source_in(*header(family=family, rest=rest))


def test_networks_are_read_strictly() -> None:
    assert len(read_networks(("10.0.0.0/8", "192.0.2.1", "2001:db8::/32"), "key")) == 3
    for text in ("10.0.0.1/8", "balancer", ""):
        with pytest.raises(InputError, match="key: "):
            read_networks((text,), "key")
