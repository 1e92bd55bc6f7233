"""Packet identifiers in the order of allocation: 1, 2, …, 65,535, 1, …

Consecutive ids are a slice of one of the rings here, which contain all ids twice so
that a slice of up to 65,535 ids is always contiguous.
"""

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct

PACKET_ID_MAX = 65_535

HIGH_BYTES = b"".join(bytes((high,)) * 256 for high in range(256))[1:] * 2
LOW_BYTES = (bytes(range(256)) * 256)[1:] * 2
encode_id: Callable[[int], bytes] = Struct(">H").pack
"""Encode one id as in a packet. A table of all of them would take 4 MB."""


def following(packet_id: int, count: int = 1) -> int:
    """Return the id allocated `count` ids after this one."""
    return (packet_id - 1 + count) % PACKET_ID_MAX + 1


def consecutive(first: int, count: int) -> Sequence[int]:
    """Return `count` ids from `first` on."""
    end = first + count
    if end <= PACKET_ID_MAX + 1:
        return range(first, end)
    return [*range(first, PACKET_ID_MAX + 1), *range(1, end - PACKET_ID_MAX)]


@cache
def acknowledgements(first_byte: int) -> bytes:
    """Return all acknowledgements of one kind without reason and properties, four bytes each, twice."""
    each = bytearray(bytes((first_byte, 2, 0, 0)) * (2 * PACKET_ID_MAX))
    each[2::4] = HIGH_BYTES
    each[3::4] = LOW_BYTES
    return bytes(each)
