"""The Makefile and scripts/setup, on machines made of stubs: no network, no packages installed.

The script runs in a copy of the few files it looks at, with a PATH on which `python3`, `apt-get`,
`id` and the like are small shell scripts that write down how they were called.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What scripts/setup may expect of any Debian machine.
BASE_TOOLS = ["sh", "cat", "cksum", "dirname", "env", "head", "mkdir", "mv", "rm", "sed", "cp"]


class Machine:
    """A checkout and a PATH that holds nothing but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.bin = folder / "bin"
        self.log = folder / "calls.log"
        (self.checkout / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        self.log.touch()
        shutil.copy(ROOT / "scripts" / "setup", self.checkout / "scripts" / "setup")
        (self.checkout / "pyproject.toml").write_text("[project]\n")
        for tool in BASE_TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.command("id", "echo 1000")

    def command(self, name: str, body: str, *, folder: Path | None = None) -> None:
        path = (folder or self.bin) / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.log}"\n{body}\n')
        path.chmod(0o755)

    def python(self, version: str = "3.11.2", *, ensurepip: str = "true", pip: str = "true") -> None:
        """A python3 whose `-m venv` makes an environment with a python that only knows pip."""
        inner = self.bin / "venv-python"
        inner.write_text(
            f'#!/bin/sh\necho "venv-python $*" >>"{self.log}"\n'
            f'case "$*" in *"pip install --quiet"*) {pip} ;; esac\n'
        )
        inner.chmod(0o755)
        self.command(
            "python3",
            f"""case "$*" in
                *ensurepip*) {ensurepip} ;;
                *version_info*) echo {version} ;;
                *"-m venv"*) mkdir -p .venv/bin && cp "{inner}" .venv/bin/python ;;
            esac""",
        )

    def setup(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "sh", "scripts/setup"],
            cwd=self.checkout,
            env={
                "PATH": str(self.bin),
                "JVM_FOLDER": str(self.bin.parent / "jvm"),
                "SERVICES_FOLDER": str(self.bin.parent / "services"),
                "SERVER_FOLDERS": str(self.bin.parent / "servers"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, part: str) -> int:
        return sum(part in line for line in self.log.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_setup_installs_once_and_again_only_when_pyproject_changed(machine: Machine) -> None:
    machine.python()
    first = machine.setup()
    assert first.returncode == 0, first.stderr
    assert machine.calls("--editable .[dev]") == 1

    second = machine.setup()
    assert (second.returncode, second.stderr) == (0, "")
    assert machine.calls("--editable .[dev]") == 1

    (machine.checkout / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert machine.setup().returncode == 0
    assert machine.calls("--editable .[dev]") == 2
    assert machine.calls("python3 -m venv") == 1, "the environment itself was still good"


def test_setup_goes_on_after_an_installation_that_failed(machine: Machine) -> None:
    online = machine.bin / "online"
    machine.python(pip=f'test -e "{online}"')
    broken = machine.setup()
    assert broken.returncode == 1
    assert "run make again" in broken.stderr.splitlines()[-1]

    online.touch()
    assert machine.setup().returncode == 0
    assert machine.calls("--editable .[dev]") == 2


def test_setup_replaces_an_environment_that_an_interruption_left_unusable(machine: Machine) -> None:
    machine.python()
    half_made = machine.checkout / ".venv" / "bin"
    half_made.mkdir(parents=True)
    machine.command("python", "exit 1", folder=half_made)
    assert machine.setup().returncode == 0
    assert machine.calls("python3 -m venv --clear") == 1


def test_setup_makes_a_new_environment_in_a_moved_checkout(machine: Machine) -> None:
    machine.python()
    assert machine.setup().returncode == 0
    machine.checkout = machine.checkout.rename(machine.checkout.parent / "moved")
    assert machine.setup().returncode == 0
    assert machine.calls("python3 -m venv") == 2


@pytest.mark.parametrize("version", ["2.7.18", "3.9.2", "3.10.14"])
def test_setup_refuses_an_old_python_in_one_line(machine: Machine, version: str) -> None:
    machine.python(version)
    result = machine.setup()
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert version in line
    assert "3.11 or newer" in line
    assert not (machine.checkout / ".venv").exists()


def test_setup_refuses_a_machine_without_python_in_one_line(machine: Machine) -> None:
    result = machine.setup()
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert "python3 was not found" in line


def test_setup_names_the_package_when_it_may_not_install_venv(machine: Machine) -> None:
    machine.python(ensurepip="exit 1")
    machine.command("apt-get", "true")
    machine.command("sudo", "exit 1")  # it would ask for a password
    result = machine.setup()
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert "apt-get install python3-venv" in line
    assert machine.calls("apt-get") == 0


@pytest.mark.parametrize("newest_17", [True, False])
def test_setup_installs_venv_and_java_where_it_may(machine: Machine, newest_17: bool) -> None:
    installed = machine.bin / "installed"
    machine.python(ensurepip=f'test -e "{installed}"')
    machine.command("id", "echo 0")
    machine.command("apt-get", f'case "$*" in *install*) : >"{installed}" ;; esac')
    machine.command("apt-cache", "true" if newest_17 else 'case "$*" in *openjdk-17*) exit 100 ;; esac')
    result = machine.setup()
    assert result.returncode == 0, result.stderr
    java = "openjdk-17-jre-headless" if newest_17 else "openjdk-21-jre-headless"
    installs = [
        line for line in machine.log.read_text().splitlines() if "apt-get" in line and "update" not in line
    ]
    assert [line.split()[-1] for line in installs] == ["python3-venv", java]


def test_setup_only_mentions_java_when_it_may_not_install_it(machine: Machine) -> None:
    machine.python()
    result = machine.setup()
    assert result.returncode == 0, "nothing but the pipeline needs Java"
    mentions = [line for line in result.stderr.splitlines() if "Java" in line]
    assert len(mentions) == 1
    assert "apt-get install openjdk-17-jre-headless" in mentions[0]


@pytest.mark.parametrize(
    ("version", "supported"), [("11.0.22", False), ("17.0.15", True), ("21.0.2", True), ("25.0.1", False)]
)
def test_setup_looks_at_the_version_of_java(machine: Machine, version: str, supported: bool) -> None:
    machine.python()
    machine.command("java", f"""echo 'openjdk version "{version}" 2025-01-01' >&2""")
    result = machine.setup()
    assert result.returncode == 0
    assert ("no Java" not in result.stderr) is supported


@pytest.mark.parametrize(
    ("user", "services", "online", "installs"),
    [(0, False, True, True), (0, True, True, False), (1000, False, True, False), (0, False, False, False)],
)
def test_setup_installs_what_tests_need_where_that_is_harmless_and_says_what_is_skipped(
    machine: Machine, user: int, services: bool, online: bool, installs: bool
) -> None:
    machine.python()
    machine.command("java", """echo 'openjdk version "17.0.15" 2025-01-01' >&2""")
    machine.command("id", f"echo {user}")
    machine.command("sudo", "exit 1")
    machine.command("timeout", 'shift; "$@"')
    machine.command("apt-get", "true" if online else 'case "$*" in *install*) exit 100 ;; esac')
    if services:
        (machine.bin.parent / "services").mkdir()
    result = machine.setup()
    assert result.returncode == 0, result.stderr
    assert ("are skipped (Debian: apt-get install" in result.stderr) is not installs
    lines = [line for line in machine.log.read_text().splitlines() if line.startswith("apt-get")]
    installed = {
        word for line in lines if "install" in line and "--download-only" not in line for word in line.split()
    }
    wanted = {"mosquitto", "mosquitto-clients", "nats-server", "activemq", "etcd-server", "chromium"}
    assert (installed & wanted) == (wanted if installs else set())


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    shown = subprocess.run(
        ["make", "--no-print-directory", "-C", ROOT],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = [line.split()[1] for line in shown.splitlines()]
    assert listed == phony
    assert all(len(line.split()) > 2 for line in shown.splitlines()), "each says what it does"


def test_make_test_checks_first_and_ends_with_pytest() -> None:
    plan = subprocess.run(
        ["make", "--no-print-directory", "-n", "-C", ROOT, "test"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    tools = [
        "scripts/setup", "ruff check", "ruff format", "mypy --strict", "tests/test_rooms.py", '-m "not slow"',
    ]  # fmt: skip
    assert [next(i for i, line in enumerate(plan) if tool in line) for tool in tools] == list(range(6))
    assert len(plan) == 6


def test_ci_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "it must be executable"
    subprocess.run(["bash", "-n", script], check=True)
    assert "make test" in script.read_text()
