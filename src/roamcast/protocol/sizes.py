"""Estimates of memory, for quotas. What they decide is replayed, so they are the same on every machine."""

TEXT_BYTES = 56
"""Memory of a string besides its characters."""


def text_bytes(text: str) -> int:
    """Memory of a string: one character that is not ASCII can make all of them take four bytes."""
    return TEXT_BYTES + (len(text) if text.isascii() else 4 * len(text))
