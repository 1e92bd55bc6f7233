"""Writing and reading event logs as Parquet."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roamcast.records.parquet import LogWriter, read_log, schema

__all__ = ["LogWriter", "read_log", "schema"]


def __getattr__(name: str) -> Any:
    """Load Parquet on first use: it takes more memory than the rest of a broker."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from roamcast.records import parquet

    return getattr(parquet, name)
