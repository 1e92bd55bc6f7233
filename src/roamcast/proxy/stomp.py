"""STOMP 1.2: frames to bytes and back, incrementally."""

from __future__ import annotations

from typing import NamedTuple

HEADERS_BYTES_MAX = 65_536
BODY_BYTES_MAX = 268_435_456

_ESCAPES = (("\\", "\\\\"), ("\r", "\\r"), ("\n", "\\n"), (":", "\\c"))


class StompError(Exception):
    """Raised for bytes that are not STOMP; the text says what is wrong."""


class Frame(NamedTuple):
    command: str
    headers: dict[str, str]
    body: bytes = b""


def write_frame(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    # The CONNECT frame alone is not escaped, for the sake of servers of STOMP 1.0.
    written = str if command == "CONNECT" else _escape
    lines = [f"{written(name)}:{written(value)}" for name, value in headers.items()]
    if body:
        lines.append(f"content-length:{len(body)}")
    head = "\n".join([command, *lines]) + "\n\n"
    return head.encode() + body + b"\0"


def _escape(text: str) -> str:
    for sign, code in _ESCAPES:
        text = text.replace(sign, code)
    return text


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = text.split("\\\\")
    for sign, code in _ESCAPES[1:]:
        parts = [part.replace(code, sign) for part in parts]
    return "\\".join(parts)


class StompReader:
    """Splits the bytes of a connection into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete."""
        self._data += data
        found: list[Frame] = []
        at = 0
        while True:
            frame, end = self._read(at)
            at = end
            if frame is None:
                break
            found.append(frame)
        del self._data[:at]
        return found

    def _read(self, at: int) -> tuple[Frame | None, int]:
        """Return a frame that begins at this position, and its end; the position itself if the frame is
        incomplete."""
        data = self._data
        while at < len(data) and data[at] in b"\r\n":  # A heart-beat.
            at += 1
        end = data.find(b"\n\n", at)
        if end < 0:
            if len(data) - at > HEADERS_BYTES_MAX:
                raise StompError("the headers of a frame are too long")
            return None, at
        command, headers = _read_head(bytes(data[at:end]))
        body_at = end + 2
        if "content-length" in headers:
            length = _length(headers.pop("content-length"))
            stop = body_at + length
            if len(data) <= stop:
                return None, at
            if data[stop] != 0:
                raise StompError("a frame is longer than its declared length")
        else:
            stop = data.find(b"\0", body_at)
            if stop < 0:
                if len(data) - body_at > BODY_BYTES_MAX:
                    raise StompError("a frame does not end")
                return None, at
        return Frame(command, headers, bytes(data[body_at:stop])), stop + 1


def _read_head(head: bytes) -> tuple[str, dict[str, str]]:
    command, *lines = head.decode("utf-8", "replace").replace("\r", "").split("\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        # If a header is repeated, the first one counts.
        headers.setdefault(_unescape(name), _unescape(value))
    return command, headers


def _length(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= BODY_BYTES_MAX):
        raise StompError(f"a frame of {text!r} bytes")
    return int(text)
