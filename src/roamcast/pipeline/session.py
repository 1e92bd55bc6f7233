"""Starts and stops Spark without output, with settings that fit the machine; masters, and a Java for them.

The output of Java goes into a file: users do not need it, and if Spark does not start, the file says why.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

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
    """Refuse a text that is not the URL of a master, and a master that does not answer."""
    if is_on_this_machine(master) or master == "yarn":
        return
    addresses = list(_addresses(master))
    problems = [_connect(host, port) for host, port in addresses]
    if all(problems):
        raise InputError(f"--master {master}: nobody answers there ({problems[0]})")


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the addresses of the master, of which one must answer."""
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
    """Return why a connection fails; "" if it succeeds."""
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
    """Return the home of a Java that Spark supports: that of JAVA_HOME, of the PATH, or any that is
    installed."""
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


HEAP_SHARE = 0.5
"""Share of the machine's memory; the rest is for Python's workers, the system and its file cache."""
HEAP_MB_MIN, HEAP_MB_MAX = 1_024, 8_192
DRIVER_MB = 1_024
"""Memory of the driver if executors do the work."""
ROWS_PER_ARROW_BATCH = 16_384
OPEN_COST_BYTES = 1 << 18
ROWS_PER_PARTITION = 250_000
PARTITIONS_MIN, PARTITIONS_MAX = 4, 1_000
PARTS_PER_CORE = 4
"""Minimum parts in which the files of a large log are read on this machine: with one part for each core,
cores wait for the last one.
"""
PARTITION_BYTES = "8m"
"""Spark joins small partitions up to this size, compressed: a row of ten bytes takes a hundred in memory."""

_NO_EARLY_COLLECTIONS = "-XX:MetaspaceSize=192m -XX:NewSize=192m"
"""Prevents early garbage collections: loading Spark's classes alone would cause several before a
job begins.
"""
SMALL_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_NO_EARLY_COLLECTIONS}"
"""Options for small jobs: otherwise half of the time would be spent compiling code that runs only briefly."""
_LIGHT_OPTIMISATION = " ".join(
    f"-XX:{option}"
    for option in (
        "Tier4InvocationThreshold=50000", "Tier4MinInvocationThreshold=6000", "Tier4CompileThreshold=150000",
        "FreqInlineSize=150", "LoopUnrollLimit=20", "-PartialPeelLoop",
    )
)  # fmt: skip
"""Ten times Java's limits: it optimises less of the code that plans queries, which runs some thousand times.
The loops over rows reach these limits at once. They are large methods, made for one query: inlining and
unrolling less takes a third off the time to optimise them, and makes them no slower.
"""
LARGE_JAVA = f"-XX:+UseParallelGC {_NO_EARLY_COLLECTIONS} {_LIGHT_OPTIMISATION}"

MAKES_CLASSES = "-XX:ArchiveClassesAtExit"
"""Java option to write an archive of the loaded classes when Java ends."""

_scratch: dict[int, Path] = {}
"""Folder of each running session, by the id of its context."""
_leaving: list[subprocess.Popen[bytes]] = []
"""Java processes that nobody waits for: Python warns of those that are forgotten before they have ended."""


def start_spark(
    master: str = LOCAL,
    *,
    name: str = "roamcast",
    memory_mb: int | None = None,
    small: bool = False,
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Start a session on that master. `settings` are Spark's own and override the defaults here.

    A `small` job has about a million rows: it gets a Java that starts quickly instead of one optimised for
    long runs.
    """
    check_master(master)
    os.environ["JAVA_HOME"] = str(find_java())
    # Workers must run what the driver runs, whatever `python3` is on their PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    scratch = Path(tempfile.mkdtemp(prefix="roamcast-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    chosen = _settings(master, memory_mb, small, scratch)
    if is_one_process(master) and not any(key.startswith(OTHER_CLASSES) for key in settings or ()):
        chosen["spark.driver.extraJavaOptions"] += f" {_with_known_classes()}"
    for key, value in {**chosen, **(settings or {})}.items():
        conf.set(key, value)
    if not quiet:
        print(f"Spark is starting ({master}) ...", file=sys.stderr, flush=True)
    log = scratch / "spark.log"
    try:
        with _home_of(master, scratch):
            context = _start(conf, log)
    except Exception as error:
        reason = _first_complaint(log) or str(error).strip().partition("\n")[0] or type(error).__name__
        _end_gateway()
        raise InputError(f"Spark does not start on {master}: {reason}") from None
    _scratch[id(context)] = scratch
    return SparkSession(context)


def stop_spark(spark: SparkSession) -> None:
    """End the session and its Java process, and remove their files from the disk."""
    scratch = _scratch.pop(id(spark.sparkContext), None)
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions") or ""
    spark.stop()
    # Java takes some seconds more to write its archive of classes; nobody need wait for that.
    _end_gateway(waits=MAKES_CLASSES not in options)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


OTHER_CLASSES = ("spark.jars", "spark.driver.extra")
"""Settings with which Java loads other classes, or is started in another way."""


def _known_classes() -> Path:
    """Return the path of the archive of Spark's classes, one for each Spark and Java of this machine."""
    home = Path(os.environ["JAVA_HOME"])
    made_of = f"{home} {(home / 'lib' / 'modules').stat().st_mtime_ns} {pyspark.__path__[0]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roamcast"
    return cache / f"spark-{pyspark.__version__}-{crc32(made_of.encode()):08x}.jsa"


def _with_known_classes() -> str:
    """Return the Java option that uses the archive, or that makes it. Java ignores an archive that is damaged
    or does not fit.
    """
    known = _known_classes()
    new = known.with_suffix(".new")
    with suppress(OSError):
        known.parent.mkdir(parents=True, exist_ok=True)
        if _is_whole(new):
            os.replace(new, known)
        return f'-XX:SharedArchiveFile="{known}"' if known.exists() else f'{MAKES_CLASSES}="{new}"'
    return ""


def _is_whole(archive: Path) -> bool:
    """Return true if Java has written the archive to its end: the first bytes come last."""
    if not archive.exists():
        return False
    with archive.open("rb") as file:
        return any(file.read(4))


def _start(conf: SparkConf, log: Path) -> SparkContext:
    with log.open("ab") as sink:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf=conf, popen_kwargs={"stdout": sink, "stderr": sink}
        )
    return SparkContext(conf=conf, gateway=gateway)


@contextmanager
def _home_of(master: str, scratch: Path) -> Iterator[None]:
    """Create a Spark home in the scratch folder, made of links. Executors of a cluster in separate processes
    leave their files in Spark's home, which is otherwise the installation of PySpark.
    """
    if is_one_process(master) or not is_on_this_machine(master):
        yield
        return
    given, installed, home = os.environ.get("SPARK_HOME"), Path(_find_spark_home()), scratch / "home"
    home.mkdir()
    for entry in installed.iterdir():
        (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
        if given is not None:
            os.environ["SPARK_HOME"] = given


def _end_gateway(*, waits: bool = True) -> None:
    """End PySpark's Java process, which would be reused by the next session; other settings need another
    process.
    """
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # Its sign to go.
    if waits:
        gateway.proc.wait()
    else:
        _leaving.append(gateway.proc)


def _first_complaint(log: Path) -> str:
    """Return the line of Spark's log that best explains why it did not start."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in lines:
        if " ERROR " in line or line.startswith(("Exception in", "Error:")):
            return line.strip()
    return ""


def _settings(master: str, memory_mb: int | None, small: bool, scratch: Path) -> dict[str, str]:
    heap_mb = memory_mb or (fitting_heap_mb() if is_one_process(master) else DRIVER_MB)
    settings = {
        "spark.driver.memory": f"{heap_mb}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
        # Filters on format("roamcast") go to brokers.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if small:
        settings["spark.sql.shuffle.partitions"] = "2"
    else:
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = PARTITION_BYTES
    for part in ("driver", "executor"):
        settings[f"spark.{part}.extraJavaOptions"] = SMALL_JAVA if small else LARGE_JAVA
    if is_on_this_machine(master):
        # Opening a file takes no time here: many small ones are read in one go.
        settings["spark.sql.files.openCostInBytes"] = str(OPEN_COST_BYTES)
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if not small:
            settings["spark.sql.files.minPartitionNum"] = str(PARTS_PER_CORE * (os.cpu_count() or 1))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return settings


def fitting_partitions(rows: int) -> int:
    """Return the number of partitions for a shuffle of this many rows; each costs the sender a file."""
    return max(PARTITIONS_MIN, min(PARTITIONS_MAX, rows // ROWS_PER_PARTITION))


def fitting_heap_mb() -> int:
    """Return a heap size that leaves enough memory for everything else on this machine, or in this
    container.
    """
    return max(HEAP_MB_MIN, min(HEAP_MB_MAX, int(HEAP_SHARE * memory_mb())))


def memory_mb() -> int:
    """Return the memory of the machine, or the limit of the container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [machine]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(file).read_text()))
        except (OSError, ValueError):
            continue  # No such file, or "max".
    return min(limits) // 2**20


# --- how far it is ---

LOOK_EVERY_S = 0.2


@contextmanager
def watched(spark: SparkSession, report: Callable[[int, int], None]) -> Iterator[None]:
    """Report the number of finished and of known tasks during the block."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, report, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(spark: SparkSession, report: Callable[[int, int], None], done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    tasks: dict[int, tuple[int, int]] = {}
    """By stage: the number of finished tasks, and of all its tasks."""
    while not done.wait(LOOK_EVERY_S):
        active = tracker.getActiveStageIds()
        for stage in active:
            info = tracker.getStageInfo(stage)
            if info is not None:
                tasks[stage] = (info.numCompletedTasks, info.numTasks)
        for stage, (_, all_of_it) in tasks.items():
            if stage not in active:
                tasks[stage] = (all_of_it, all_of_it)
        report(sum(one for one, _ in tasks.values()), sum(all_of_it for _, all_of_it in tasks.values()))
