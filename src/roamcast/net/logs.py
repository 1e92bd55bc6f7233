"""Log lines on stderr: for people, or one JSON object each for programs."""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from roamcast.config.sections import Log

TEXT = "%(asctime)s %(levelname)s %(message)s"


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= {0x2028: "\\u2028", 0x2029: "\\u2029"}


class TextLines(logging.Formatter):
    """Formats each record as one line, also if names of clients contain line breaks; a traceback has lines
    of its own."""

    def format(self, record: logging.LogRecord) -> str:
        record.msg, record.args = record.getMessage().translate(_CONTROLS), None
        return super().format(record)


class JsonLines(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and its `fields`."""

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
    """Set up logging once, before the first record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines(TEXT))
    logging.basicConfig(handlers=[handler], level=settings.level.upper())


def set_level(settings: Log) -> None:
    logging.getLogger().setLevel(settings.level.upper())


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return the `extra` of a log call: the fields that programs read."""
    return {"fields": values}
