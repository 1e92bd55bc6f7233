"""The control channel of a running broker: a unix socket in its data folder, for the same user alone.

A request is one line of JSON, {"command": …}; answers are lines of JSON, the last one contains "done".
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.net.unix_sockets import bound, short

log = logging.getLogger("roamcast.control")

SOCKET_NAME = "control"
LINE_BYTES_MAX = 65_536
REQUEST_S_MAX = 5.0

Answers = AsyncIterator[dict[str, object]]
Command = Callable[[dict[str, Any]], Answers]


class ControlServer:
    def __init__(self, data: Path, commands: dict[str, Command]) -> None:
        self.path = data / SOCKET_NAME
        self._commands = commands
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        try:
            # Holding the journal's lock means that no other process uses the folder.
            self._server = await asyncio.start_unix_server(
                self._serve, sock=bound(self.path), limit=LINE_BYTES_MAX
            )
        except OSError as error:
            # The broker works without a control channel.
            log.warning("no control channel at %s: %s", self.path, error)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                line = await reader.readline()
            async for answer in self._answers(line):
                if writer.is_closing():
                    break
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, OSError, asyncio.CancelledError):
            pass  # The sender disconnected or never completed its request, or the broker stops.
        finally:
            writer.close()

    async def _answers(self, line: bytes) -> Answers:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
            command = self._commands.get(str(request.get("command")))
            if command is None:
                raise InputError(f"there is no such command; valid are {', '.join(self._commands)}")
            async for answer in command(request):
                yield answer
        except msgspec.MsgspecError:
            yield {"error": "not a line of JSON", "done": True}
        except InputError as error:
            yield {"error": str(error), "done": True}


def ask(data: Path, timeout_s: float, **request: object) -> Iterator[dict[str, Any]]:
    """Send a command to the broker with this data folder, and yield its answers as they arrive."""
    path = data / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(short(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = msgspec.json.decode(line, type=dict[str, Any])
                    if "error" in answer:
                        raise InputError(str(answer["error"]))
                    yield answer
                    if answer.get("done"):
                        return
        except TimeoutError:
            raise InputError(f"{path}: the broker gave no answer for {timeout_s:g} s") from None
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"data folder {data}: no broker answers ({reason}); is it running?") from None
    raise InputError(f"{path}: the broker closed the connection before the command was done")
