"""Spark looks for packages of such names, and so finds `format("roamcast")` by itself."""

from roamcast.pipeline.source import RoamcastSource as DefaultSource

__all__ = ["DefaultSource"]
