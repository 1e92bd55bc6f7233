"""Many independent runs over all cores.

A job describes one run, and a function turns a job into a row of plain figures. Both can be pickled (the
function by its name), so the same jobs run in processes of this machine or on a cluster. Rows are returned
in the order of the jobs, whatever the order in which they finish.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from roamcast.bench.interrupts import interrupts_held_back, workers_ended
from roamcast.lab.kept import KeptRuns, commit
from roamcast.lab.rows import Row
from roamcast.plugins import load_protocols


class Job(Protocol):
    """Describes one run: a frozen dataclass whose fields can be compared, hashed and pickled."""

    @property
    def name(self) -> str:
        """Name of the run, with its seed, so that a failure can be reproduced."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(cast(Any, self)))

    @property
    def cost(self) -> float:
        """Expected duration relative to other jobs; the longest start first."""
        return 1.0


J = TypeVar("J", bound=Job)
T = TypeVar("T")


def grid(make: Callable[..., T], **axes: Iterable[Any]) -> list[T]:
    """Return a job for each combination of these values; the last axis changes fastest."""
    return [make(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def seeds(count: int) -> range:
    """Return the seeds of this number of runs that differ by nothing else."""
    return range(1, count + 1)


TRIES = 2
"""How often a job is tried before it is listed as failed."""

Spread = Callable[[Callable[[Any], Row], list[Any]], Iterator[tuple[Any, Row | Exception]]]
"""Runs jobs elsewhere: yields each job with its row or its error, in the order in which they finish."""


@dataclass(frozen=True)
class Failure:
    """A run that failed twice."""

    run: str
    error: str

    def __str__(self) -> str:
        return f"{self.run}: {self.error}"


class Sweep:
    """Runs jobs and keeps their rows: a job that two experiments share runs once."""

    def __init__(
        self,
        workers: int | None = None,
        report: Callable[[int, int], None] | None = None,
        logs: Path | None = None,
        spread: Spread | None = None,
        kept: KeptRuns | None = None,
        *,
        only_kept: bool = False,
        repetitions: int | None = None,
    ) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self.report = report
        """Called with the number of finished runs and the total."""
        self.logs = logs
        """Folder for event logs: every job that can write one has a folder of its own in it."""
        self.spread = spread
        """Runs the jobs elsewhere, such as on a cluster; None: on the cores of this machine."""
        self.kept = kept
        """Stores runs: runs of earlier sweeps are not repeated, and those of this one are added."""
        self.repetitions = repetitions
        """Maximum number of runs that differ only by their seed; None: as the experiment says."""
        self.only_kept = only_kept
        """True to run nothing: rows that are not kept are absent."""
        self.absent = 0
        """Number of absent rows; a reader may reset it."""
        self.failures: list[Failure] = []
        self.commits: Counter[str] = Counter()
        """Number of returned rows by the commit that made them; a reader may clear it."""
        self._made_by: dict[tuple[Callable[..., Row], object], str] = {}
        self._done: dict[tuple[Callable[..., Row], object], Row | Failure] = {}
        self._left = self._total = 0
        self._on_row: Callable[[Row], None] | None = None

    def run(self, function: Callable[[J], Row], jobs: Sequence[J]) -> list[Row]:
        """Return the rows of all jobs that succeeded, in the order of the jobs.

        A failed run is retried once, in its own process. If it fails again, it is listed in `failures`, and
        the others continue.
        """
        jobs = [job for job in jobs if self.takes(job)]
        asked = dict.fromkeys(jobs)
        new = [job for job in asked if self.recall(function, job) is None]
        new = [job for job in new if (function, job) not in self._done]
        if self.only_kept:
            self.absent += len(new)
            new = []
        new.sort(key=lambda job: -job.cost)
        self._left = self._total = len(new)
        tries = dict.fromkeys(new, 0)
        attempt, waiting = self._attempt, new
        while waiting:
            again: list[J] = []
            for job, row in attempt(function, waiting):
                # A process that dies also breaks jobs that had not started; that is not a try of theirs.
                tries[job] += attempt == self._attempt_alone or not isinstance(row, BrokenExecutor)
                if isinstance(row, Exception) and tries[job] < TRIES:
                    again.append(job)
                else:
                    self._finish(function, job, row)
            attempt, waiting = self._attempt_alone, again
        self.failures.sort(key=str)
        rows = (self._done.get((function, job)) for job in jobs)
        return [row for row in rows if isinstance(row, dict)]

    def takes(self, job: object) -> bool:
        """Return whether a job is among the repetitions to run: by its `repetition`, or its `seed`."""
        number = int(getattr(job, "repetition", getattr(job, "seed", 1)))
        return self.repetitions is None or number <= self.repetitions

    def run_here(
        self, function: Callable[[J], Row], jobs: Sequence[J], on_row: Callable[[Row], None]
    ) -> list[Failure]:
        """Run jobs that need this machine; their rows are not kept."""
        here = Sweep(self.workers, self.report)
        here._on_row = on_row
        here.run(function, jobs)
        return here.failures

    def recall(self, function: Callable[[Any], Row], job: object) -> Row | None:
        """Return the row of an earlier run, of this sweep or of a kept one."""
        done = self._done.get((function, job))
        # Event logs are written by running: with them, every job runs.
        if done is None and self.kept is not None and self.logs is None:
            found = self.kept.find(function, job)
            if found is not None:
                done, self._made_by[function, job] = found
                self._done[function, job] = done
        if done is None or isinstance(done, Failure):
            return None
        self.commits[self._made_by[function, job]] += 1
        return done

    def keep(self, function: Callable[[Any], Row], job: object, row: Row) -> None:
        """Keep the row of a run for later."""
        self._done[function, job] = row
        self._made_by[function, job] = commit()
        self.commits[commit()] += 1
        if self.kept is not None:
            self.kept.keep(function, job, row)

    def _finish(self, function: Callable[[J], Row], job: J, row: Row | Exception) -> None:
        if isinstance(row, Exception):
            failure = Failure(job.name, f"{type(row).__name__}: {row}")
            self.failures.append(failure)
            self._done[function, job] = failure
        else:
            self.keep(function, job, row)
            if self._on_row is not None:
                self._on_row(row)
        self._left -= 1
        if self.report is not None:
            self.report(self._total - self._left, self._total)

    def _attempt(self, function: Callable[[J], Row], jobs: list[J]) -> Iterator[tuple[J, Row | Exception]]:
        """Yields each job with its row or its error, in the order in which they finish."""
        if self.spread is not None:
            given = {self._with_log(job): job for job in jobs}
            for job, row in self.spread(function, list(given)):
                yield given[job], row
            return
        if self.workers == 1 or len(jobs) <= 1:
            for job in jobs:
                yield job, _caught(function, self._with_log(job))
            return
        workers = min(self.workers, len(jobs))
        with _pool(workers) as pool, workers_ended():
            yield from self._collect(pool, function, jobs)

    def _attempt_alone(
        self, function: Callable[[J], Row], jobs: list[J]
    ) -> Iterator[tuple[J, Row | Exception]]:
        """Like `_attempt`, but each job has a process of its own and can break no other job."""
        if self.workers == 1 or self.spread is not None:
            yield from self._attempt(function, jobs)
            return
        with ThreadPoolExecutor(self.workers) as threads, workers_ended():
            yield from self._collect(threads, _InOwnProcess(function), jobs)

    def _collect(
        self, pool: Executor, function: Callable[[J], Row], jobs: list[J]
    ) -> Iterator[tuple[J, Row | Exception]]:
        with interrupts_held_back():  # The first ones start the workers.
            futures: dict[Future[Row], J] = {pool.submit(function, self._with_log(job)): job for job in jobs}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield futures[future], future.result() if error is None else error
        finally:
            # After an interruption, do not wait for the remaining jobs.
            pool.shutdown(wait=False, cancel_futures=True)

    def _with_log(self, job: J) -> J:
        if self.logs is None or not hasattr(job, "log"):
            return job
        folder = self.logs / "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in job.name)
        return replace(job, log=str(folder))  # type: ignore[type-var]


class _InOwnProcess:
    """Calls a function in a process that does nothing else."""

    def __init__(self, function: Callable[[Any], Row]) -> None:
        self.function = function

    def __call__(self, job: Any) -> Row:
        with _pool(1) as pool:
            return pool.submit(self.function, job).result()


def _caught(function: Callable[[J], Row], job: J) -> Row | Exception:
    try:
        return function(job)
    except Exception as error:
        return error


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=_context(), initializer=load_protocols)


def _context() -> BaseContext:
    """Return a context that spawns processes: a forked one would inherit locks held by our threads."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["roamcast.lab.measure"])
    return context
