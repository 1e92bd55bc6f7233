"""`roamcast view`: its files, its pictures, and the server that shows them on this machine alone."""

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from roamcast.cli import build_app, run
from roamcast.errors import InputError
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.view.server import ReplayServer

ROWS = [Row(1, 0.0, "a", "attached", client="car", broker="a", number=1), Row(2, 1.0, "a", "started")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        with LogWriter(tmp_path / "log" / name, name) as writer:
            writer.write(ROWS)
    return tmp_path / "log"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(build_app(), ["view", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("roamcast: ")


def test_a_replay_is_written_to_a_file_and_drawn(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, png = log / "two.roamview", log / "two.png"
    assert run(build_app(), ["view", str(log), "--run", "two", "--out", str(out), "--png", str(png)]) == 0
    assert json.loads(gzip.decompress(out.read_bytes()).splitlines()[0])["name"] == "two"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert f"roamcast view {out}" in capsys.readouterr().out


def test_what_cannot_be_is_said_in_one_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, log, "--out", "x") == f"{log} holds 2 runs; choose one with --run: one, two"
    assert refused(capsys, log, "--run", "twoo", "--out", "x") == "--run twoo: did you mean 'two'?"
    assert refused(capsys, log / "none").endswith("there is no such folder")
    assert refused(capsys, log / "none.roamview").endswith("there is no such file")
    assert "this is a replay already" in refused(capsys, "x.roamview", "--png", "x.png")
    assert "--out" in refused(capsys, log / "one", "--out", log / "no" / "x")


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    def broken() -> bytes:
        raise InputError("run b: its log holds no rows")

    with ReplayServer({"a b": lambda: b"content", "b": broken}) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: ReplayServer, path: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    connection.request("GET", path, headers={"Host": host or address.netloc})
    answer = connection.getresponse()
    result = answer.status, dict(answer.headers), answer.read()
    connection.close()
    return result


def test_the_server_gives_the_page_and_the_replays(server: ReplayServer) -> None:
    assert server.url.endswith("/?replay=a%20b")
    status, headers, page = ask(server, "/?replay=b")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in re.findall(rb'"(/assets/[^"]+)"', page):
        assert ask(server, name.decode())[0] == 200
    listed = json.loads(ask(server, "/replays.json")[2])["replays"]
    assert listed == [{"file": "/replays/0", "name": "a b"}, {"file": "/replays/1", "name": "b"}]
    assert ask(server, "/replays/0")[2] == b"content"
    assert ask(server, "/replays/1")[::2] == (500, b"run b: its log holds no rows\n")


@pytest.mark.parametrize("path", ["/replays/2", "/replays/-1", "/../cli/view.py", "/%2e%2e/errors.py", "/x"])
def test_nothing_else_is_served(server: ReplayServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_foreign_names_are_refused(server: ReplayServer) -> None:
    assert ask(server, "/replays.json", "evil.example")[0] == 421
    assert ask(server, "/", f"localhost:{server.server_address[1]}")[0] == 200


def test_the_command_serves_until_it_is_interrupted(log: Path) -> None:
    command = [sys.executable, "-m", "roamcast", "view", str(log), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(
            r"The replay is at http://127\.0\.0\.1:\d+/\?replay=one \(Ctrl-C ends it\)\n", line
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
