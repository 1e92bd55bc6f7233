"""The documents are run: every command and every Python block of README.md and docs/.

- ```python blocks are scripts: each runs in a process of its own.
- ```console (or sh, bash, shell) blocks: every line that starts with `$ ` is a command; a line that
  ends with a backslash goes on in the next. The other lines are what the command prints, and are
  not compared. A console block without a command is a mistake.
- What one document runs, it runs in one temporary folder from top to bottom, with the virtual
  environment's commands on the PATH and the folder examples/ in reach. A test that runs alone, or on
  another worker, first runs what comes before it in its document.
- A command that ends with `&` is a server: it runs until the document is done, and the next step begins when
  it says that it listens. `kill %1 %2; wait` stops all of them. Ports of 127.0.0.1 (after `127.0.0.1:` or
  `-p`) are replaced by free ones, the same throughout a document, so that documents can show the usual ports
  and nobody else's server is met.
- `make`: running the suite or the demo from within the suite would not end, or install things, so a
  make command is only asked for its plan (`make -n`), which fails when there is no such target.
- Only the programs in PROGRAMS may be used; anything else would need a machine we do not have. A document
  that runs one of SERVERS, and a command that is one of CLIENTS, is skipped where that is not installed.
- `<!-- not run: reason -->` on the line right above a block leaves it out. There may be few of these.
- `<!-- slow -->` right above a block leaves it to `make test-all`, together with whatever later
  block needs what it made, which must be marked too.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = {"console", "sh", "bash", "shell"}
SERVERS = {"etcd", "java", "mosquitto", "nats-server"}
CLIENTS = {"mosquitto_pub", "mosquitto_sub"}
PROGRAMS = {"roamcast", "make", "python", "cat", "head", "ls", "mkdir", "kill", *CLIENTS, *SERVERS}
STOP_ALL = re.compile(r"kill( %\d+)+; wait")
READY = re.compile(
    r"listens|mosquitto version \S+ running|Server is ready|ActiveMQ .* started|ready to serve|serving"
)
DEBIAN_FILES = re.compile(r"/usr/share/[\w-]+")
NOT_RUN_MAX = 6
TIMEOUT_S = {False: 120, True: 1800}

PORT = re.compile(r"(?P<before>127\.0\.0\.1:|(?<= )-p )(?P<port>\d+)\b")
PORT_MIN = 1024

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)[^`]*$")
COMMENT = re.compile(r"\s*<!--\s*(?P<text>.*?)\s*-->\s*$")


class DocumentError(Exception):
    """A document that breaks the rules above; the text says where and what."""


@dataclass(frozen=True)
class Block:
    """A fenced block and the comments right above it."""

    language: str
    text: str
    line: int
    comments: tuple[str, ...]

    @property
    def slow(self) -> bool:
        return "slow" in self.comments

    @property
    def reason_not_run(self) -> str | None:
        for comment in self.comments:
            if comment.startswith("not run"):
                reason = comment.removeprefix("not run").removeprefix(":").strip()
                if not reason:
                    raise DocumentError(f"line {self.line}: «not run» needs a reason")
                return reason
        return None


@dataclass(frozen=True)
class Step:
    """One thing to run: a shell command or a Python script."""

    kind: str
    text: str
    line: int
    slow: bool


def blocks_of(markdown: str) -> Iterator[Block]:
    comments: list[str] = []
    lines = iter(enumerate(markdown.splitlines(), start=1))
    for number, line in lines:
        comment = COMMENT.match(line)
        fence = FENCE.match(line)
        if comment:
            comments.append(comment["text"])
        elif fence:
            body: list[str] = []
            closing = re.compile(rf" *{re.escape(fence['ticks'][0])}{{{len(fence['ticks'])},}} *$")
            for _, inner in lines:
                if closing.match(inner):
                    break
                body.append(inner.removeprefix(fence["indent"]))
            else:
                raise DocumentError(f"line {number}: this block is never closed")
            yield Block(fence["language"], "\n".join(body), number, tuple(comments))
            comments = []
        else:
            comments = []


def commands_of(block: Block) -> Iterator[tuple[int, str]]:
    """The commands of a console block, each with its line."""
    lines = iter(enumerate(block.text.splitlines(), start=block.line + 1))
    for number, line in lines:
        if not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\"):
            _, following = next(lines, (0, ""))
            command = command.removesuffix("\\") + following.strip()
        yield number, command.strip()


def program_of(command: str) -> str:
    """The first word that is not an assignment such as SEED=1."""
    words = shlex.split(command)
    return next((word for word in words if not re.match(r"\w+=", word)), "")


def steps_of(markdown: str) -> Iterator[Step]:
    for block in blocks_of(markdown):
        if block.reason_not_run is not None:
            continue
        if block.language == "python":
            yield Step("python", block.text, block.line, block.slow)
            continue
        commands = list(commands_of(block))
        if block.language not in CONSOLE:
            if any(program_of(command) in {"roamcast", "make"} for _, command in commands):
                raise DocumentError(f"line {block.line}: commands belong in a ```console block")
            continue
        if not commands:
            raise DocumentError(f"line {block.line}: no line of this console block starts with «$ »")
        for line, command in commands:
            if program_of(command) not in PROGRAMS:
                raise DocumentError(f"line {line}: only {', '.join(sorted(PROGRAMS))} can be run: {command}")
            yield Step("shell", command, line, block.slow)


def not_run_in(markdown: str) -> list[Block]:
    return [block for block in blocks_of(markdown) if block.reason_not_run is not None]


@dataclass
class Story:
    """The steps of one document and the folder they share."""

    steps: list[Step]
    folder: Path
    done: dict[int, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, index: int) -> subprocess.CompletedProcess[str]:
        """Run a step, after those before it that have not run yet; slow ones only for a slow one."""
        for earlier in range(index + 1):
            step = self.steps[earlier]
            if earlier not in self.done and (self.steps[index].slow or not step.slow):
                text = PORT.sub(self._free_port, step.text)
                self.done[earlier] = self._perform(replace(step, text=text))
        return self.done[index]

    def _free_port(self, found: re.Match[str]) -> str:
        if found["port"] not in self.ports and int(found["port"]) >= PORT_MIN:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.ports[found["port"]] = str(probe.getsockname()[1])
        return found["before"] + self.ports.get(found["port"], found["port"])

    def _perform(self, step: Step) -> subprocess.CompletedProcess[str]:
        if STOP_ALL.fullmatch(step.text):
            assert step.text.count("%") == len(self.servers), "every server is stopped at once"
            self.stop()
            self.servers.clear()
            return subprocess.CompletedProcess(step.text, 0, "", "")
        if not step.text.endswith("&") or step.kind != "shell":
            return perform(step, self.folder)
        log = self.folder / f"server-{len(self.servers)}.log"
        words = shlex.split(step.text.removesuffix("&"))
        with log.open("wb") as output:
            server = subprocess.Popen(
                words,
                cwd=self.folder,
                env=environment(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self.servers.append(server)
        end = time.monotonic() + TIMEOUT_S[False]
        while not READY.search(log.read_text()) and server.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        # A server that has ended, or is still silent, has failed.
        is_ready = READY.search(log.read_text()) and server.poll() is None
        return subprocess.CompletedProcess(words, 0 if is_ready else 1, log.read_text(), "")

    def stop(self) -> None:
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def environment() -> dict[str, str]:
    # A surrounding make would hand its flags on to the one that is being asked here.
    found = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    # Debian keeps servers where not every user looks.
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", ""), "/usr/sbin"])
    found["MPLBACKEND"] = "Agg"
    return found


def perform(step: Step, folder: Path) -> subprocess.CompletedProcess[str]:
    if step.kind == "python":
        command = [sys.executable, "-c", step.text]
    elif program_of(step.text) == "make":
        command = ["make", "-n", "-C", str(ROOT), *shlex.split(step.text)[1:]]
    else:
        command = ["bash", "-euo", "pipefail", "-c", step.text]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S[step.slow],
    )


def documents() -> list[Path]:
    readme = ROOT / "README.md"
    return ([readme] if readme.exists() else []) + sorted((ROOT / "docs").rglob("*.md"))


def collected() -> Iterator[object]:
    """One parameter for each step of each document; a broken document is one that fails."""
    for path in documents():
        name = path.relative_to(ROOT).as_posix()
        try:
            steps = list(steps_of(path.read_text(encoding="utf-8")))
        except DocumentError as error:
            yield pytest.param(name, -1, str(error), id=f"{name}-broken")
            continue
        for index, step in enumerate(steps):
            marks = [pytest.mark.xdist_group(name), *([pytest.mark.slow] if step.slow else [])]
            label = step.text if step.kind == "shell" else "python"
            yield pytest.param(name, index, "", id=f"{name}:{step.line}: {label[:60]}", marks=marks)


@pytest.fixture(scope="session")
def stories() -> Iterator[dict[str, Story]]:
    found: dict[str, Story] = {}
    yield found
    for story in found.values():
        story.stop()


@pytest.mark.parametrize(("document", "index", "problem"), list(collected()))
def test_a_document_runs(
    document: str,
    index: int,
    problem: str,
    stories: dict[str, Story],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert not problem, f"{document}: {problem}"
    if document not in stories:
        steps = list(steps_of((ROOT / document).read_text(encoding="utf-8")))
        folder = tmp_path_factory.mktemp("document")
        (folder / "examples").symlink_to(ROOT / "examples")
        stories[document] = Story(steps, folder)
    programs = {program_of(one.text) for one in stories[document].steps if one.kind == "shell"}
    step = stories[document].steps[index]
    own = {program_of(step.text)} if step.kind == "shell" else set()
    for program in sorted((programs & SERVERS) | (own & CLIENTS)):
        if shutil.which(program, path=environment()["PATH"]) is None:
            pytest.skip(f"{program} is not installed")
    for found in {path for one in stories[document].steps for path in DEBIAN_FILES.findall(one.text)}:
        if not Path(found).exists():
            pytest.skip(f"{found} is not there: its package is not installed")
    result = stories[document].run(index)
    assert result.returncode == 0, (
        f"{document}:{step.line}: {step.text}\nexit code {result.returncode}\n{result.stdout}{result.stderr}"
    )


def test_few_blocks_are_left_out() -> None:
    left_out = [
        f"{path.relative_to(ROOT)}:{block.line}: {block.reason_not_run}"
        for path in documents()
        for block in not_run_in(path.read_text(encoding="utf-8"))
    ]
    assert len(left_out) <= NOT_RUN_MAX, "\n".join(left_out)


# From here on: the extractor and the runner themselves, on documents written here.

SAMPLE = dedent(
    """\
    # A title

    ```console
    $ roamcast sim --seed 1 \\
        --out run
    wrote run
    $ make demo
    ```

    Text with `inline code` and ```ticks```.

    <!-- slow -->
    ```python
    assert 1 + 1 == 2
    ```

    1. in a list:

       ```sh
       $ SEED=2 roamcast fuzz
       ```

    <!-- not run: needs a cluster -->
    ```console
    $ spark-submit sweep.py
    ```

    ```toml
    [site]
    ```

    ````text
    ```console
    $ ls inside another block
    ```
    ````
    """
)


def test_the_extractor_finds_what_is_to_be_run() -> None:
    assert list(steps_of(SAMPLE)) == [
        Step("shell", "roamcast sim --seed 1 --out run", 4, False),
        Step("shell", "make demo", 7, False),
        Step("python", "assert 1 + 1 == 2", 13, True),
        Step("shell", "SEED=2 roamcast fuzz", 20, False),
    ]
    assert [block.reason_not_run for block in not_run_in(SAMPLE)] == ["needs a cluster"]


def test_a_comment_must_be_right_above_its_block() -> None:
    assert len(list(steps_of("<!-- not run: no -->\n\n```python\npass\n```\n"))) == 1
    assert len(list(steps_of("<!-- not run: no -->\n<!-- slow -->\n```python\npass\n```\n"))) == 0


@pytest.mark.parametrize(
    ("markdown", "problem"),
    [
        ("<!-- not run: -->\n```python\npass\n```", "line 2: «not run» needs a reason"),
        ("<!-- not run -->\n```console\n$ ls\n```", "line 2: «not run» needs a reason"),
        ("```console\nroamcast demo\n```", "line 1: no line of this console block"),
        ("```console\n$ ls\n$ launch-rockets now\n```", "line 3: only"),
        ("```text\n$ roamcast demo\n```", "line 1: commands belong in"),
        ("```\n$ make demo\n```", "line 1: commands belong in"),
        ("text\n```python\npass\n", "line 2: this block is never closed"),
    ],
)
def test_a_document_that_would_hide_something_is_refused(markdown: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(problem)):
        list(steps_of(markdown))


def test_steps_share_a_folder_in_order_and_failures_show(tmp_path: Path) -> None:
    markdown = dedent(
        """\
        ```console
        $ mkdir made
        ```
        ```python
        from pathlib import Path
        Path("made/by_python").write_text("hello")
        ```
        ```console
        $ cat made/by_python
        $ cat no-such-file | head -1
        ```
        ```python
        raise SystemExit(3)
        ```
        """
    )
    story = Story(list(steps_of(markdown)), tmp_path)
    assert story.run(2).stdout == "hello", "asking for one step runs those before it"
    assert [story.run(index).returncode for index in range(5)] == [0, 0, 0, 1, 3]


def test_a_quick_step_does_not_run_the_slow_ones_before_it(tmp_path: Path) -> None:
    markdown = "<!-- slow -->\n```console\n$ mkdir slow\n```\n```console\n$ mkdir quick\n```\n"
    story = Story(list(steps_of(markdown)), tmp_path)
    assert story.run(1).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]


def test_a_server_runs_until_the_document_is_done(tmp_path: Path) -> None:
    serve = "import socket, time; s = socket.create_server(('127.0.0.1', {})); print('listens', flush=True); "
    commands = [
        'python -c "import sys; print(sys.argv)" -p 1883 127.0.0.1:1884 127.0.0.1:1 port 1883',
        f"""python -c "{serve.format("int('127.0.0.1:1883'[10:])")}time.sleep(600)" &""",
        """python -c "import socket; socket.create_connection(('127.0.0.1', int('127.0.0.1:1883'[10:])))" """,
        "python -c pass &",
    ]
    story = Story([Step("shell", command.strip(), 1, False) for command in commands], tmp_path)
    try:
        assert [story.run(index).returncode for index in range(4)] == [0, 0, 0, 1]
        assert set(story.ports) == {"1883", "1884"}
        words = f"['-c', '-p', '{story.ports['1883']}', '127.0.0.1:{story.ports['1884']}', '127.0.0.1:1', "
        assert story.run(0).stdout == words + "'port', '1883']\n"
    finally:
        story.stop()
    assert story.servers[0].poll() is not None


def test_a_make_target_must_exist(tmp_path: Path) -> None:
    assert perform(Step("shell", "make test", 1, False), tmp_path).returncode == 0
    assert perform(Step("shell", "make no-such-target", 1, False), tmp_path).returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_of_this_environment_is_the_one_that_runs(tmp_path: Path) -> None:
    result = perform(Step("shell", "python -c 'import sys; print(sys.prefix)'", 1, False), tmp_path)
    assert result.stdout.strip() == sys.prefix
