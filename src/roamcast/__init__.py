"""Roamcast: publish/subscribe for things that move."""

__version__ = "0.1.0"
