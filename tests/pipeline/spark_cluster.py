"""A standalone cluster of Spark's own master and worker processes, on free ports of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from tests.daemon.brokers import free_port
from tests.pipeline.waiting import wait_until

from roamcast.pipeline.session import find_java

SPARK_CLASS = Path(pyspark.__path__[0]) / "bin" / "spark-class"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
LOOPBACK = "127.0.0.1"


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The URL of its master, while the block runs."""
    port = free_port()
    url = f"spark://{LOOPBACK}:{port}"
    log = folder / "cluster.log"
    common = ["--host", LOOPBACK, "--webui-port", "0"]
    commands = [[MASTER, *common, "--port", str(port)]]
    for number in range(workers):
        work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
        commands.append([WORKER, *common, *work, url])
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    processes = []
    try:
        with log.open("ab") as said:
            for command in commands:
                process = subprocess.Popen([SPARK_CLASS, *command], stdout=said, stderr=said, env=environment)
                processes.append(process)
        wait_until(
            lambda: log.read_text(errors="replace").count("Registering worker") >= workers,
            lambda: log.read_text(errors="replace")[-3000:],
        )
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)
