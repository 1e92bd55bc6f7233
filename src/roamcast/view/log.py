"""Rows of a run for a replay: in the order of time, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.protocol.records import COLUMNS, SCHEMA_VERSION, Row
from roamcast.records.parquet import VERSION_KEY

PASSED_OVER = (".", "_")
"""Prefixes of names to skip: unfinished files begin with a dot, a tool's own files with an underscore."""
HOPS = ("forwarded", "control")
"""Kinds with a row for each link that was used, from which the links are known."""
ARRIVALS = ("delivered", "acknowledged")
NOT_TOLD = (*HOPS, *ARRIVALS, "queued", "sent", "advertised", "unadvertised", "located")
"""Kinds of rows that are not read as events of the network."""
LINK_COLUMNS = ("node", "peer")
ARRIVAL_COLUMNS = (
    "time", "client", "publisher", "incarnation", "number", "notifications", "reason", "published_at",
)  # fmt: skip
ROW_KEY = ("node", "sequence")
"""Columns that identify a row."""

Arrival = tuple[float, str, str, int | None, int, int | None, str | None, float | None]
"""Values of `ARRIVAL_COLUMNS`."""


def runs_in(folder: Path) -> dict[str, list[Path]]:
    """Return each run whose log is in the folder or below, with the files that contain its rows."""
    if not folder.exists():
        raise InputError(f"{folder}: there is no such folder")
    try:
        files = [folder] if folder.is_file() else sorted(_files_below(folder))
    except OSError as error:
        raise InputError(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
    runs: dict[str, list[Path]] = {}
    for file in files:
        for run in _runs_of(file):
            runs.setdefault(run, []).append(file)
    if not runs:
        raise InputError(f"{folder}: no event log in it; brokers write one with events.enabled = true")
    return dict(sorted(runs.items()))


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith(PASSED_OVER):
            continue
        if entry.is_dir():
            yield from _files_below(entry)
        elif entry.suffix == ".parquet":
            yield entry


def _runs_of(file: Path) -> list[str]:
    """Return the runs in a file. Other Parquet files, such as tables of an audit, may lie beside a log; they
    have none.
    """
    try:
        with pq.ParquetFile(file) as parquet:
            metadata = parquet.schema_arrow.metadata or {}
            if VERSION_KEY not in metadata:
                return []
            if int(metadata[VERSION_KEY]) > SCHEMA_VERSION:
                raise InputError(
                    f"{file} has schema version {metadata[VERSION_KEY].decode()};"
                    f" this program reads up to {SCHEMA_VERSION}"
                )
            column = parquet.schema_arrow.get_field_index("run")
            groups = [parquet.metadata.row_group(group) for group in range(parquet.num_row_groups)]
            spans = [group.column(column).statistics for group in groups if group.num_rows]
            if all(span is not None and span.has_min_max and span.min == span.max for span in spans):
                return sorted({str(span.min) for span in spans})
            found = pc.unique(parquet.read(columns=["run"]).column("run")).to_pylist()
            return sorted(str(run) for run in found if run is not None)
    except (pa.ArrowException, OSError):
        raise InputError(f"{file}: is not a complete Parquet file (truncated or damaged)") from None


class RunLog:
    """Rows of one run. Each method reads only the columns and kinds that it needs."""

    def __init__(self, files: Sequence[Path], run: str) -> None:
        self._data = ds.dataset([str(file) for file in files], format="parquet")
        self._of_run = pc.field("run") == run
        self.rows = self._data.count_rows(filter=self._of_run)

    def events(self) -> list[Row]:
        """Return events of brokers, links, clients and subscriptions, and publishes."""
        wanted = self._of_run & ~pc.field("kind").isin(NOT_TOLD)
        table = self._data.to_table(columns=list(COLUMNS)[1:], filter=wanted)
        columns = [table.column(name).to_pylist() for name in list(COLUMNS)[1:]]
        # After a crash a broker writes rows again: node and sequence tell that they are the same.
        rows = {(row.node, row.sequence): row for row in map(Row, *columns)}
        return sorted(rows.values(), key=lambda row: (row.time, row.node, row.sequence))

    def links(self) -> list[tuple[str, str]]:
        """Return broker and peer of each link that was used."""
        wanted = self._of_run & pc.field("kind").isin(HOPS)
        table = self._data.to_table(columns=list(LINK_COLUMNS), filter=wanted)
        pairs = table.group_by(list(LINK_COLUMNS)).aggregate([]).to_pylist()
        return sorted((pair["node"], pair["peer"]) for pair in pairs if pair["node"] and pair["peer"])

    def span(self) -> tuple[float, float]:
        """Return the times of the first and the last row."""
        times = self._data.to_table(columns=["time"], filter=self._of_run).column("time")
        found = pc.min_max(times).as_py()
        return float(found["min"]), float(found["max"])

    def arrivals(self) -> Iterator[Arrival]:
        """Return arrivals that clients recorded; for clients without records, their acknowledgements at
        brokers."""
        own = self._arrivals("delivered", [])
        yield from _values(own)
        yield from _values(self._arrivals("acknowledged", pc.unique(own.column("client")).to_pylist()))

    def _arrivals(self, kind: str, left_out: list[str]) -> pa.Table:
        """Return arrivals in the order of time, each row once."""
        wanted = self._of_run & (pc.field("kind") == kind) & pc.field("number").is_valid()
        client = pc.field("client")
        wanted = wanted & client.is_valid() & ~client.isin(pa.array(left_out, pa.string()))
        table = self._data.to_table(columns=[*ROW_KEY, *ARRIVAL_COLUMNS], filter=wanted).sort_by("time")
        table = table.append_column("place", pa.array(range(len(table)), pa.int64()))
        firsts = table.group_by(list(ROW_KEY)).aggregate([("place", "min")]).column("place_min")
        return table.take(firsts.sort()) if len(firsts) < len(table) else table


def _values(table: pa.Table) -> Iterator[Arrival]:
    return zip(*(table.column(name).to_pylist() for name in ARRIVAL_COLUMNS), strict=True)
