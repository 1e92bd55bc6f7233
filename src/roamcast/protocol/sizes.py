"""Estimates of memory, for quotas. Decisions based on them are replayed, so they are the same on every
machine."""

TEXT_BYTES = 56
"""Memory of a string besides its characters."""


def text_bytes(text: str) -> int:
    """Return the memory of a string: one character outside ASCII can make all of them take four bytes."""
    return TEXT_BYTES + (len(text) if text.isascii() else 4 * len(text))
