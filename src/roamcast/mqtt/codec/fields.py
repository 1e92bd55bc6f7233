"""The data types of packet fields (MQTT 5.0 section 1.5, MQTT 3.1.1 section 1.5).

Every reader takes the bytes, the start, and the end of the surrounding part. It
returns the value and its end, and never reads past the given end.
"""

from roamcast.errors import InputError
from roamcast.mqtt.codec.errors import malformed, protocol_error

VARIABLE_MAX = 268_435_455
LENGTH_MAX = 65_535


def read_byte(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at >= end:
        raise malformed("the packet ends where a byte is expected")
    return data[at], at + 1


def read_two(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at + 2 > end:
        raise malformed("the packet ends within a two byte integer")
    return data[at] << 8 | data[at + 1], at + 2


def read_four(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at + 4 > end:
        raise malformed("the packet ends within a four byte integer")
    return int.from_bytes(data[at : at + 4], "big"), at + 4


def read_variable(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + 4, end)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and position > at:
                raise malformed("a variable byte integer is longer than it needs to be")
            return value, position + 1
        shift += 7
    if at + 4 <= end:
        raise malformed("a variable byte integer has more than four bytes")
    raise malformed("the packet ends within a variable byte integer")


def read_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    start = at + 2
    if start > end:
        raise malformed("the packet ends within the length of a field")
    stop = start + (data[at] << 8 | data[at + 1])
    if stop > end:
        raise malformed(f"a field of {stop - start} bytes has only {end - start} left")
    return data[start:stop], stop


def decoded(raw: bytes) -> str:
    """Decode a UTF-8 string, strictly: Python itself refuses surrogates and overlong forms."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"a string is not well-formed UTF-8 at byte {error.start + 1}") from None
    if "\0" in text:
        raise malformed("a string contains the null character U+0000")
    return text


def read_string(data: bytes, at: int, end: int) -> tuple[str, int]:
    raw, stop = read_binary(data, at, end)
    return decoded(raw), stop


def read_pair(data: bytes, at: int, end: int) -> tuple[tuple[str, str], int]:
    name, at = read_string(data, at, end)
    value, at = read_string(data, at, end)
    return (name, value), at


def read_packet_id(data: bytes, at: int, end: int) -> tuple[int, int]:
    packet_id, at = read_two(data, at, end)
    if packet_id == 0:
        raise protocol_error("the packet identifier is 0")
    return packet_id, at


def write_byte(value: int) -> bytes:
    return _written(value, 1)


def write_two(value: int) -> bytes:
    return _written(value, 2)


def write_four(value: int) -> bytes:
    return _written(value, 4)


def _written(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise InputError(f"{value} does not fit in {size} bytes: 0 to {256**size - 1} are valid") from None


def write_packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id <= LENGTH_MAX:
        raise InputError(f"a packet identifier of {packet_id}: 1 to {LENGTH_MAX} are valid")
    return packet_id.to_bytes(2, "big")


def write_variable(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= VARIABLE_MAX:
        raise InputError(f"{value} is no variable byte integer: 0 to {VARIABLE_MAX} are valid")
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def write_binary(value: bytes) -> bytes:
    if len(value) > LENGTH_MAX:
        raise InputError(f"a field of {len(value)} bytes does not fit in a packet: at most {LENGTH_MAX}")
    return len(value).to_bytes(2, "big") + value


def write_string(value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise InputError(f"the string {value[:40]!r} has no UTF-8 form") from None
    if b"\0" in raw:
        raise InputError(f"the string {value[:40]!r} contains a null character, which MQTT forbids")
    return write_binary(raw)


def write_pair(value: tuple[str, str]) -> bytes:
    return write_string(value[0]) + write_string(value[1])
