"""Finding a Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from roamcast.errors import InputError

SUPPORTED = (17, 21)
"""What PySpark 4 runs on."""
JVM_FOLDER = Path("/usr/lib/jvm")


def find_java(jvm_folder: Path = JVM_FOLDER) -> Path:
    """The home of a Java that Spark runs on: the one of JAVA_HOME, of the PATH, or any that is installed."""
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
    """The major version of a java command; None if it does not start or does not say."""
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None
