"""The supervisor process of a site's workers: it starts them, restarts those that end, and stops all
together.

It holds the ports of the listeners, without listening, and the secret of the site's links; no messages pass
through it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from roamcast.config.addresses import join_endpoint
from roamcast.config.sections import Config, Listener
from roamcast.daemon.control import ask
from roamcast.daemon.workers import (
    Worker,
    gone,
    gone_folder,
    leaving,
    secret_file,
    worker_folder,
    worker_id,
)
from roamcast.errors import InputError, cannot_listen
from roamcast.net import logs
from roamcast.storage.failures import write_private

log = logging.getLogger("roamcast")

PAUSE_MIN_S, PAUSE_MAX_S = 0.25, 30.0
"""Bounds of the pause before a worker is restarted that ended twice in a row, or cleanly; the pause doubles.
"""
STABLE_S = 10.0
"""A worker that ran for at least this long is restarted at once."""
SECRET_BYTES = 32
ASK_S = 30.0
ASK_AGAIN_S = 0.5


def supervise(config: Config, warnings: Iterable[str] = ()) -> int:
    """Run a site of workers until it is told to stop; return its exit code."""
    logs.set_up(config.log)
    for line in warnings:
        log.warning("%s", line)
    return asyncio.run(Supervisor(config).run())


class Supervisor:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._data = Path(config.data)
        self._held: list[socket.socket] = []
        """Sockets that reserve the ports for this site; they do not listen."""
        self._ports: tuple[int, ...] = ()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._unready: set[int] = set()
        self._leavers: list[int] = []
        self._dismissing: list[asyncio.Task[None]] = []
        self._dismissed: set[int] = set()
        self._stopping = asyncio.Event()
        self._is_up = False
        self._exit_code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop, 0)
        loop.add_signal_handler(signal.SIGHUP, self._send_all, signal.SIGHUP)
        self._check_gone()
        self._ports = tuple(self._hold(number, one) for number, one in enumerate(self._config.listeners))
        self._make_secret()
        self._leavers = leaving(self._data, self._config.workers)
        numbers = [*range(1, self._config.workers + 1), *self._leavers]
        self._unready = set(numbers)
        await asyncio.gather(*map(self._keep, numbers))
        for task in self._dismissing:
            task.cancel()
        await asyncio.gather(*self._dismissing, return_exceptions=True)
        for one in self._held:
            one.close()
        log.info("site %s has stopped", self._config.id)
        return self._exit_code

    def _on_ready(self, number: int) -> None:
        """Record that a worker serves. When all workers serve for the first time, surplus workers can
        leave."""
        self._unready.discard(number)
        if self._unready or self._is_up or self._stopping.is_set():
            return
        self._is_up = True
        ports = ", ".join(map(str, self._ports))
        log.info("site %s serves on %s with %d workers", self._config.id, ports, self._config.workers)
        leavers = [*self._leavers, *gone(self._data)]
        self._dismissing = [asyncio.create_task(self._dismiss(one)) for one in leavers]

    def _hold(self, number: int, listener: Listener) -> int:
        """Reserve a port that the workers will share, if no other process has it; return the port."""
        host, port = listener.address, listener.port
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, (address, *_) in dict.fromkeys(found):
                if port:
                    # A shared bind would also succeed if another site already shares this port.
                    socket.create_server((str(address), port), family=family).close()
                one = socket.socket(family, socket.SOCK_STREAM)
                self._held.append(one)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((str(address), port))
                port = int(one.getsockname()[1])
        except OSError as error:
            where = join_endpoint(host, port)
            raise cannot_listen(f"listener.{number} {where}", error) from None
        return port

    def _check_gone(self) -> None:
        known = [number for number in gone(self._data) if number <= self._config.workers]
        if known:
            folder, number = gone_folder(self._data, known[0]), known[0]
            raise InputError(
                f"workers = {self._config.workers}: {folder} belongs to a worker that is not forgotten"
                f" yet; start once with workers = {number - 1}"
            )

    def _make_secret(self) -> None:
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            write_private(secret_file(self._data), secrets.token_hex(SECRET_BYTES).encode())
        except OSError as error:
            raise InputError(f"{secret_file(self._data)}: cannot be written ({error.strerror})") from None

    # --- one worker ---

    async def _keep(self, number: int) -> None:
        """Run a worker, and restart it if it ends by itself."""
        failures, name = 0, worker_id(self._config.id, number)
        while not self._stopping.is_set() and number not in self._dismissed:
            started_s = time.monotonic()
            code = await self._run(number)
            if self._stopping.is_set() or number in self._dismissed:
                return
            if not self._is_up and code > 0:
                self._stop(code)  # As with a single broker: the worker has logged the reason.
                return
            failures = 0 if time.monotonic() - started_s > STABLE_S else failures + 1
            pause_s = 0.0 if code and failures <= 1 else min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0**failures)
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            log.error("worker %s %s: it is started again in %g s", name, how, pause_s)
            await self._pause(pause_s)

    async def _run(self, number: int) -> int:
        worker = Worker(number, self._config.workers, self._ports, os.getpid())
        worker_folder(self._data, number).mkdir(mode=0o700, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *sys.orig_argv[1:],
            env={**os.environ, **worker.variable()},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._processes[number] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        while await process.stdout.readline():
            self._on_ready(number)
        code = await process.wait()
        del self._processes[number]
        return code

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # --- signals ---

    def _stop(self, code: int) -> None:
        if not self._stopping.is_set():
            self._exit_code = code
            self._stopping.set()
            self._send_all(signal.SIGTERM)

    def _send_all(self, name: signal.Signals) -> None:
        for number in list(self._processes):
            self._send(number, name)

    def _send(self, number: int, name: signal.Signals) -> None:
        process = self._processes.get(number)
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(name)

    # --- fewer workers than before ---

    async def _dismiss(self, number: int) -> None:
        """Let a surplus worker hand over its sessions, then end it permanently."""
        id, folder = worker_id(self._config.id, number), worker_folder(self._data, number)
        if number in self._leavers:
            log.info("worker %s hands its sessions to the others", id)
            while not await asyncio.to_thread(self._is_emptied, folder):
                await asyncio.sleep(ASK_AGAIN_S)
            self._dismissed.add(number)
            self._send(number, signal.SIGTERM)
            while number in self._processes:
                await asyncio.sleep(ASK_AGAIN_S)
            # A forgotten worker must not be restarted, even if this process ends now.
            folder.rename(gone_folder(self._data, number))
        while not await asyncio.to_thread(self._is_forgotten, id):
            await asyncio.sleep(ASK_AGAIN_S)
        shutil.rmtree(gone_folder(self._data, number))
        self._send(1, signal.SIGHUP)  # Worker 1 no longer tries to reach it.
        log.info("worker %s has handed over everything and is removed", id)

    def _is_emptied(self, folder: Path) -> bool:
        """True if the worker has handed over its sessions, and worker 1 has all its messages."""
        try:
            for _ in ask(folder, ASK_S, command="drain", to=self._config.id):
                pass
            *_, status = ask(folder, ASK_S, command="status")
        except InputError as error:
            log.debug("%s", error)  # The worker has just been started or restarted.
            return False
        return not any(link["kept_bytes"] for link in status["links"])

    def _is_forgotten(self, id: str) -> bool:
        try:
            for _ in ask(self._data, ASK_S, command="forget", broker=id):
                pass
        except InputError as error:
            log.debug("%s", error)
            # Otherwise worker 1 has not noticed yet that the link is down.
            return str(error).startswith("there is no broker")
        return True
