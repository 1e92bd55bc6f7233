"""Where Spark runs and on which Java, and what is said when that cannot be."""

import socket
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from roamcast.errors import InputError
from roamcast.pipeline import session
from roamcast.pipeline.session import (
    HEAP_MB_MAX,
    HEAP_MB_MIN,
    check_master,
    find_java,
    fitting_heap_mb,
    fitting_partitions,
    is_on_this_machine,
    is_one_process,
    memory_mb,
    version_of,
    watched,
)

pytestmark = pytest.mark.xdist_group("spark")


def make_java(folder: Path, says: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any, and the folder in which they would be."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "jvm"


def test_no_java_is_one_clear_line(no_java: Path) -> None:
    with pytest.raises(InputError, match="Spark needs Java 17 or 21 and none was found; install one"):
        find_java(no_java)


def test_a_java_that_is_too_old_or_too_new_is_passed_over(no_java: Path) -> None:
    make_java(no_java / "java-8-openjdk", 'openjdk version "1.8.0_392"')
    make_java(no_java / "java-25-temurin", 'openjdk version "25" 2025-09-16')
    good = make_java(no_java / "java-21-openjdk", 'openjdk version "21.0.2" 2024-01-16')
    assert find_java(no_java) == good.parent.parent


def test_java_home_comes_first(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(no_java / "java-17-openjdk", 'openjdk version "17.0.1"')
    mine = make_java(no_java.parent / "mine", 'openjdk version "17.0.9"')
    monkeypatch.setenv("JAVA_HOME", str(mine.parent.parent))
    assert find_java(no_java) == mine.parent.parent


def test_what_does_not_start_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path / "java") is None
    assert version_of(make_java(tmp_path, "no idea")) is None


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2,3]", "local[*, 4]"])
def test_one_process(master: str) -> None:
    check_master(master)
    assert is_one_process(master)


def test_a_cluster_in_processes_is_on_this_machine() -> None:
    check_master("local-cluster[2,1,1536]")
    assert is_on_this_machine("local-cluster[2,1,1536]")
    assert not is_one_process("local-cluster[2,1,1536]")


@pytest.mark.parametrize(
    "master",
    ["", "locale[*]", "local[0]", "local[]", "local-cluster[2]", "spark://", "spark://host", "mesos://a:1",
     "spark://host:99999", "k8s://", "spark://[::1:7077", "http://a:8080"],
)  # fmt: skip
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(InputError, match="is no Spark master; valid are local"):
        check_master(master)


@pytest.mark.parametrize("scheme", ["spark://", "k8s://", "k8s://https://"])
def test_a_master_that_does_not_answer_is_named(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"{scheme}127.0.0.1:{port}")
    with pytest.raises(InputError, match=rf"nobody answers there \(127.0.0.1:{port}: connection refused\)"):
        check_master(f"{scheme}127.0.0.1:{port}")


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_the_heap_fits_the_machine() -> None:
    assert HEAP_MB_MIN <= fitting_heap_mb() <= min(HEAP_MB_MAX, max(HEAP_MB_MIN, memory_mb() // 2))


def test_what_travels_is_cut_into_parts_of_a_size() -> None:
    assert [fitting_partitions(rows) for rows in (1, 10_000_000, 10**12)] == [4, 40, 1_000]


def test_stages_are_watched(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    tasks = 16
    enough = threading.Event()

    def report(done: int, total: int) -> None:
        seen.append((done, total))
        if total >= tasks:
            enough.set()

    def wait_a_little(_: int) -> int:
        return enough_for_the_watcher()

    with watched(spark, report):
        spark.sparkContext.parallelize(range(tasks), tasks).map(wait_a_little).count()
        assert enough.wait(30)
    assert all(done <= total for done, total in seen)
    assert seen[-1][1] == tasks


def enough_for_the_watcher() -> int:
    return sum(range(2_000_000))


def test_classes_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(find_java()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    option, _, quoted = session._with_known_classes().partition("=")
    new = Path(quoted.strip('"'))
    assert (option, new.parent, new.exists()) == (session.MAKES_CLASSES, tmp_path / "roamcast", False)
    new.write_bytes(bytes(4) + b"archive")
    assert session._with_known_classes() == f'{option}="{new}"', "Java still writes it, or was killed"
    new.write_bytes(b"archive")
    kept = new.with_suffix(".jsa")
    assert session._with_known_classes() == f'-XX:SharedArchiveFile="{kept}"'
    assert (kept.read_bytes(), new.exists()) == (b"archive", False)
    assert session._with_known_classes() == f'-XX:SharedArchiveFile="{kept}"'


def test_where_nothing_can_be_kept_the_next_start_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(find_java()))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert session._with_known_classes() == ""
