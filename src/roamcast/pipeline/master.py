"""Where Spark runs: forms of a master's URL, a check that it answers, and a suitable Java.

Spark itself would try for minutes before it reports a wrong URL.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from roamcast.errors import InputError

LOCAL = "local[*]"
"""Every core of this machine, in one process."""

ANSWER_WITHIN_S = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}

_IN_ONE_PROCESS = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?")
_IN_PROCESSES = re.compile(r"local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]")
_STANDALONE = re.compile(r"spark://(?P<hosts>[^\s/,]+:\d+(,[^\s/,]+:\d+)*)")
_KUBERNETES = re.compile(r"k8s://(?P<url>\S+)")

VALID = "local[*], local[N], local-cluster[N,CORES,MB], spark://HOST:PORT, k8s://https://HOST:PORT and yarn"


def is_one_process(master: str) -> bool:
    """Return whether driver and executors share one process, and its memory."""
    return _IN_ONE_PROCESS.fullmatch(master) is not None


def is_on_this_machine(master: str) -> bool:
    return is_one_process(master) or _IN_PROCESSES.fullmatch(master) is not None


def check_master(master: str) -> None:
    """Refuse texts that are no master's URL, and a master that does not answer."""
    if is_on_this_machine(master) or master == "yarn":
        return
    addresses = list(_addresses(master))
    problems = [_connect(host, port) for host, port in addresses]
    if all(problems):
        raise InputError(f"--master {master}: nobody answers there ({problems[0]})")


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the addresses of which one must answer."""
    standalone, kubernetes = _STANDALONE.fullmatch(master), _KUBERNETES.fullmatch(master)
    try:
        if standalone:
            return [_address(f"spark://{one}") for one in standalone["hosts"].split(",")]
        if kubernetes:
            url = kubernetes["url"]
            return [_address(url if "://" in url else f"https://{url}")]
    except ValueError:
        pass  # A port out of range, or a bracket that is not closed.
    raise InputError(f"--master {master!r}: is no Spark master; valid are {VALID}")


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    if not parts.hostname or not port:
        raise ValueError(url)
    return parts.hostname, port


def _connect(host: str, port: int) -> str:
    """Return why there is no connection; "" if there is one."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_WITHIN_S):
            return ""
    except OSError as error:
        return f"{host}:{port}: {(error.strerror or str(error)).lower()}"


# --- Java ---

SUPPORTED = (17, 21)
"""Java versions that PySpark 4 supports."""
JVM_FOLDER = Path("/usr/lib/jvm")


def find_java(jvm_folder: Path = JVM_FOLDER) -> Path:
    """Return the home of a Java that Spark supports: that of JAVA_HOME, of the PATH, or any installed one."""
    for java in _candidates(jvm_folder):
        if version_of(java) in SUPPORTED:
            return java.resolve().parent.parent
    versions = " or ".join(map(str, SUPPORTED))
    raise InputError(
        f"Spark needs Java {versions} and none was found; install one"
        " (Debian: apt-get install openjdk-17-jre-headless) or name it in JAVA_HOME"
    )


def _candidates(jvm_folder: Path) -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    found = shutil.which("java")
    if found:
        yield Path(found)
    for version in SUPPORTED:
        yield from sorted(jvm_folder.glob(f"*-{version}-*/bin/java"))


def version_of(java: Path) -> int | None:
    """Return the major version of a java command; None if it does not start or reports none."""
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None
