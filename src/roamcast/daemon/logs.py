"""Log lines on stderr: for people, or one JSON object each for programs."""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from roamcast.daemon.sections import Log

TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """time, level, logger, message, and whatever a line has as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up(settings: Log) -> None:
    """Once, before anything is logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=settings.level.upper())


def set_level(settings: Log) -> None:
    logging.getLogger().setLevel(settings.level.upper())


def fields(**values: object) -> dict[str, dict[str, object]]:
    """The `extra` of a log call: what a program reads from the line."""
    return {"fields": values}
