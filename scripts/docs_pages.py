"""The pages of the site that are not files of docs/: MkDocs runs this while it builds (see mkdocs.yml).

Each page is made from what ships: the commands from the command line's own tables, the metrics from a broker
that is started for it, the event log from its schema. So a page cannot say less or more than the program has.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

import roamcast
from roamcast.cli.app import build_app
from roamcast.protocol.records import COLUMNS, KINDS, NEEDED, SCHEMA_VERSION, Row

ROOT = Path(__file__).resolve().parent.parent
MOVED = {"README.md": "index.md", "benchmarks/README.md": "benchmarks.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
START_MAX_S = 30.0


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages: dict[str, Callable[[], str]] = {
        "reference/commands.md": commands,
        "reference/python.md": python,
        "reference/metrics.md": metrics,
        "reference/event-log.md": event_log,
        "reference/decisions.md": decisions,
    }
    for source, name in MOVED.items():
        pages[name] = (ROOT / source).read_text
    for name, make in pages.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site; what the site does not have loses its link."""
    here = page.file.src_uri
    source = {name: path for path, name in MOVED.items()}.get(here, f"docs/{here}")

    def moved(found: re.Match[str]) -> str:
        path = (ROOT / source).parent.joinpath(found["target"]).resolve()
        if here.startswith("reference/") or not path.exists():
            return found[0]  # MkDocs says so if it leads nowhere.
        name = path.relative_to(ROOT).as_posix()
        target = MOVED.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            return found["text"]
        return f"[{found['text']}]({'../' * here.count('/')}{target}{found['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def commands() -> str:
    lines = ["# Commands", "", "Each takes `--help`, which shows the same with an example.", ""]
    lines += command_lines(get_command(build_app()), "roamcast")
    return "\n".join(lines)


def command_lines(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, one in sorted(command.commands.items()):
            if not one.hidden:
                yield from command_lines(one, f"{path} {name}")
        return
    yield from [f"## {path}", "", escaped((command.help or "").strip()), ""]
    rows = [row for row in (option_row(parameter) for parameter in command.params) if row]
    if rows:
        yield from ["| | | default |", "|---|---|---|", *rows, ""]


def option_row(parameter: Any) -> str | None:
    text = (getattr(parameter, "help", "") or "").replace("\n", " ")
    if getattr(parameter, "hidden", False):
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.human_readable_name}`"
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, (str, int, float)) and default not in ("", False) else ""
    return f"| {names} | {escaped(text)} | {escaped(shown)} |"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def python() -> str:
    names = sorted(name for name in roamcast.__all__ if not name.startswith("_"))
    lines = ["# Python", "", "What `import roamcast` offers. [The guide](../client.md) shows it at work.", ""]
    for name in names:
        lines += [f"::: roamcast.client.{name}", ""]
    return "\n".join(lines)


def metrics() -> str:
    lines = [
        "# Metrics", "",
        "What `/metrics` tells Prometheus if `metrics.enabled` is true ([operations](../operations.md)).", "",
        "| name | kind | what |", "|---|---|---|",
    ]  # fmt: skip
    told = scrape()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told, re.MULTILINE))
    for name, text in re.findall(r"^# HELP (\S+) (.*)$", told, re.MULTILINE):
        lines.append(f"| `{name}` | {kinds[name]} | {escaped(text)} |")
    return "\n".join(lines)


def scrape() -> str:
    """What a broker with a peer tells, started for it and stopped again."""
    mqtt, http, link = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "site.toml"
        config.write_text(
            f'id = "here"\ndata = "{folder}/data"\n[[listener]]\nport = {mqtt}\n[link]\nport = {link}\n'
            f'[metrics]\nenabled = true\nport = {http}\n[[peer]]\nid = "there"\naddress = "127.0.0.1:1"\n'
        )
        command = [sys.executable, "-m", "roamcast", "broker", "--config", str(config)]
        broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + START_MAX_S
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5) as answer:
                        return str(answer.read().decode())
                except OSError:
                    if broker.poll() is not None or time.monotonic() > end:
                        broker.kill()
                        raise RuntimeError(f"the broker did not start: {broker.communicate()[1]}") from None
                    time.sleep(0.05)
        finally:
            broker.terminate()
            broker.wait()


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def event_log() -> str:
    lines = [
        "# Event log", "",
        f"Version {SCHEMA_VERSION} of the rows that brokers, clients and the simulator write as Parquet. "
        "`roamcast pipeline` reads nothing else; [the guide](../pipeline.md) shows what comes of them.", "",
        "| column | type |", "|---|---|",
    ]  # fmt: skip
    lines += [f"| `{name}` | {kind} |" for name, kind in COLUMNS.items()]
    assert set(Row._fields) < set(COLUMNS)
    lines += ["", "A row says its kind; without these columns it says nothing and is put aside:", ""]
    lines += ["| kind | needs |", "|---|---|"]
    lines += [f"| `{kind}` | {', '.join(f'`{name}`' for name in NEEDED[kind])} |" for kind in KINDS]
    return "\n".join(lines)


def decisions() -> str:
    lines = ["# Decisions", "", "What was decided, why, and what it costs, in the order of time.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        number, _, text = title.partition(". ")
        lines.append(f"- {number}. [{text or title}](../decisions/{path.name})")
    return "\n".join(lines)
