"""`roamcast view`: replays an event log in the browser, or writes it as a file or picture."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from roamcast.cli.usage import argument, option, show_examples
from roamcast.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from roamcast.view.replay import Place
    from roamcast.view.server import Make

SUFFIX = ".roamview"


def register(app: typer.Typer) -> None:
    examples = show_examples("roamcast view demo/log", "roamcast view demo/log --run roam-7 --png roam.png")
    app.command("view", epilog=examples)(view)


def view(
    log: Path = argument(..., "Folder of an event log, of several, or a *.roamview file."),
    run: str | None = option(None, "Which run, if the folder holds several."),
    places: Path | None = option(None, "CSV file broker,latitude,longitude: draw the brokers on a map."),
    out: Path | None = option(None, "Write the replay to this file instead of showing it."),
    png: Path | None = option(None, "Write the picture to this PNG file instead of opening the page."),
    browser: bool = option(True, "Open the page in a browser."),
    port: int = option(0, "Port of the page on 127.0.0.1; 0 takes a free one.", min=0, max=65535),
) -> None:
    """Replay what happened: clients, handoffs, queues and losses, with a time slider.

    The page is served only on this machine, until Ctrl-C.
    """
    if log.suffix == SUFFIX and (out or png or run):
        raise InputError(f"{log}: --out, --png and --run need an event log; this is a replay already")
    if out or png:
        write(log, run, places, out, png)
    else:
        serve(replays_of(log, run, places), port, browser)


def write(log: Path, run: str | None, places: Path | None, out: Path | None, png: Path | None) -> None:
    from roamcast.view.log import runs_in
    from roamcast.view.replay import build, encode

    runs = runs_in(log)
    if run is None and len(runs) > 1:
        raise InputError(f"{log} holds {len(runs)} runs; choose one with --run: {', '.join(runs)}")
    name = chosen(runs, run)
    replay = build(runs[name], name, known_places(places))
    if out:
        try:
            out.write_bytes(encode(replay))
        except OSError as error:
            raise InputError(f"--out {out}: {(error.strerror or str(error)).lower()}") from None
        print(f"Replay of {replay.rows:,} rows: {out} (open it with: roamcast view {out})")
    if png:
        from roamcast.view.picture import draw

        draw(replay, png)
        print(f"Picture of {replay.rows:,} rows: {png}")


def replays_of(log: Path, run: str | None, places: Path | None) -> Mapping[str, Make]:
    """Map the name of each replay to a function that creates its file."""
    if log.suffix == SUFFIX:
        if not log.is_file():
            raise InputError(f"{log}: there is no such file")
        return {log.stem: log.read_bytes}
    from roamcast.view.log import runs_in
    from roamcast.view.replay import build, encode

    runs, where = runs_in(log), known_places(places)
    first = [chosen(runs, run)] if run else []

    def make(name: str) -> bytes:
        return encode(build(runs[name], name, where))

    return {name: partial(make, name) for name in dict.fromkeys([*first, *runs])}


def chosen(runs: Mapping[str, object], run: str | None) -> str:
    if run is None:
        return next(iter(runs))
    if run not in runs:
        raise InputError(f"--run {run}: {did_you_mean(run, runs) or 'there are: ' + ', '.join(runs)}")
    return run


def known_places(file: Path | None) -> dict[str, Place]:
    from roamcast.view.replay import read_places

    return read_places(file) if file else {}


def serve(replays: Mapping[str, Make], port: int, browser: bool) -> None:
    from roamcast.view.server import ReplayServer

    with ReplayServer(replays, port) as server, suppress(KeyboardInterrupt):
        print(f"The replay is at {server.url} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()
