"""Writing and reading the event log as Parquet."""

from roamcast.records.parquet import LogWriter, read_log, schema

__all__ = ["LogWriter", "read_log", "schema"]
