"""How far Spark is: the tasks of its stages, counted while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

LOOK_EVERY_S = 0.2


@contextmanager
def watched(spark: SparkSession, report: Callable[[int, int], None]) -> Iterator[None]:
    """While the block runs, report how many tasks are done, of how many that are known so far."""
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
    """Stage to its tasks that are done, and all of them."""
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
