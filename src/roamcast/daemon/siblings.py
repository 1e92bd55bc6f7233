"""Requests of worker 1 of a site to the other workers, over their control channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from roamcast.daemon.control import SOCKET_NAME
from roamcast.net.unix_sockets import short

ASK_S = 3.0
ANSWER_BYTES_MAX = 64 << 20

Answer = dict[str, Any]


class Siblings:
    """The other workers of the current configuration: ids and folders."""

    def __init__(self, folders: Callable[[], Mapping[str, Path]]) -> None:
        self.folders = folders

    def __contains__(self, id: str) -> bool:
        return id in self.folders()

    async def ask(self, **request: object) -> dict[str, Answer]:
        """Return the last answer of each worker; one with "error" if the worker refuses or does not
        answer."""
        folders = self.folders()
        answers = await asyncio.gather(*(_ask(folder, request) for folder in folders.values()))
        return dict(zip(folders, answers, strict=True))


async def _ask(folder: Path, request: dict[str, object]) -> Answer:
    try:
        async with asyncio.timeout(ASK_S):
            return await _last_answer(folder / SOCKET_NAME, request)
    except TimeoutError:
        return {"error": f"no answer for {ASK_S:g} s", "is_away": True}
    except (OSError, EOFError, ValueError) as error:
        return {"error": f"no answer ({getattr(error, 'strerror', None) or error})", "is_away": True}


async def _last_answer(path: Path, request: dict[str, object]) -> Answer:
    reader, writer = await asyncio.open_unix_connection(short(path), limit=ANSWER_BYTES_MAX)
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        while line := await reader.readline():
            answer = msgspec.json.decode(line, type=Answer)
            if answer.get("done"):
                return answer
        raise EOFError("it closed the connection before it had finished")
    finally:
        writer.close()


# --- one page of metrics ---


def merged(pages: Mapping[str, str]) -> str:
    """Merge the pages of all workers into one: each sample carries a label with its worker."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    return "".join(f"{line}\n" for family in heads for line in (*heads[family], *samples.get(family, ())))


def _labelled(sample: str, worker: str) -> str:
    """A sample with one more label."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'


# --- one status ---


def site_health(own: Answer, others: Mapping[str, Answer]) -> Answer:
    """Return the health of worker 1 and of the others: a worker that is away only accepts no clients."""
    told = {id: one["error"] if "error" in one else one["health"]["status"] for id, one in others.items()}
    is_failing = own["status"] == "failing" or "failing" in told.values()
    return {**own, "status": "failing" if is_failing else "ok", "workers": told}


def site_status(own: Answer, others: Mapping[str, Answer]) -> Answer:
    """Return the status of worker 1, with the sums of all workers and a row for each."""
    answered = [own, *(one for one in others.values() if "error" not in one)]
    failing = [f"{one['broker']}: {one['journal']}" for one in answered if one["journal"] != "ok"]
    counts = ("connections", "sessions", "queued", "fail_stops")
    sums: Answer = {name: sum(one[name] for one in answered) for name in counts}
    sums["kept_out"] = [who for one in answered for who in one["kept_out"]]
    rows = [_row(own["broker"], own), *(_row(id, one) for id, one in others.items())]
    return {**own, **sums, "journal": "; ".join(failing) or "ok", "workers": rows}


def _row(id: str, answer: Answer) -> Answer:
    if "error" in answer:
        return {"worker": id, "up": False, "why": answer["error"]}
    names = ("uptime_s", "connections", "sessions", "queued", "journal", "fail_stops", "process")
    return {"worker": id, "up": True, **{name: answer[name] for name in names}}
