"""What a snapshot keeps of an object, declared by the object's class.

    class LinkEnd:
        __state__ = State("link-end", saved=("peer", "sent"), unhashed=("settled",), derived=("_parts",))

The name stays the same when the class is renamed or moves to another module. A snapshot refuses an
attribute that its class does not declare, so a new attribute is never forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Lift = Callable[[dict[str, Any]], None]
"""Changes the fields of one version, by name, into those of the next version.

A lift may add, remove and rename fields. Objects in the fields may still be empty when it runs: code that
reads them belongs in `_restore`.
"""


class State:
    """The declared state of one class; a derived class adds its own declaration to those of its bases."""

    __slots__ = ("derived", "lifts", "name", "saved", "unhashed", "version")

    def __init__(
        self,
        name: str,
        version: int = 1,
        *,
        saved: tuple[str, ...] = (),
        unhashed: tuple[str, ...] = (),
        derived: tuple[str, ...] = (),
        lifts: Mapping[int, Lift] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        """Rises by one whenever the saved fields change, or what they mean."""
        self.saved = saved
        """Saved and hashed. Left out, these are the remaining slots, or the fields of a dataclass."""
        self.unhashed = unhashed
        """Saved, but not part of the hash: they depend on inputs that are not journalled."""
        self.derived = derived
        """Not saved: `_restore` makes them again, when everything that was saved is there."""
        self.lifts = lifts or {}
        """Functions that lift each older readable version to the next one."""

    @property
    def names(self) -> tuple[str, ...]:
        """All declared attributes, as slots.

        The interpreter reads slots fastest; attributes of an object that has more than 30 are the slowest.
        """
        return *self.saved, *self.unhashed, *self.derived
