"""Which leader wrote which entries of a journal, and where two journals diverge.

A leader writes under its epoch, and entries of one epoch have one author. So two journals that have an entry
of the same number and epoch are equal up to that entry.
"""

from __future__ import annotations

from collections.abc import Iterable

TERMS_KEPT = 64
"""Epochs that a replica remembers. A replica that missed more of them gets a snapshot."""

Term = tuple[int, int]
"""An epoch, and the number of its first entry."""


class Terms:
    """The epochs of one journal, in order."""

    def __init__(self, terms: Iterable[Term] = ()) -> None:
        self.terms: list[Term] = [(int(epoch), int(first)) for epoch, first in terms]

    @property
    def epoch(self) -> int:
        """The last known epoch; 0 if none."""
        return self.terms[-1][0] if self.terms else 0

    def begin(self, epoch: int, first: int) -> None:
        """Note that a leader of this epoch writes from this entry on."""
        self.terms = [*(term for term in self.terms if term[1] < first), (epoch, first)][-TERMS_KEPT:]

    def epoch_of(self, sequence: int) -> int:
        """Return the epoch of an entry; 0 if unknown."""
        return next((epoch for epoch, first in reversed(self.terms) if first <= sequence), 0)

    def end_of(self, epoch: int, last: int) -> int:
        """Return the last entry of this epoch in a journal that ends with `last`; -1 if there is none."""
        for place, (known, _) in enumerate(self.terms):
            if known == epoch:
                return self.terms[place + 1][1] - 1 if place + 1 < len(self.terms) else last
        return -1

    def includes(self, last: int, epoch: int, sequence: int) -> bool:
        """True if this journal, which ends with `last`, begins with another that ends with `sequence`.

        `epoch` is that of the other journal's last entry.
        """
        if sequence == 0:
            return True
        return sequence <= last and sequence <= self.end_of(epoch, last) and self.epoch_of(sequence) == epoch
