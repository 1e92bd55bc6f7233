"""Names of clients in event logs, replaced by keyed pseudonyms: logs trace the movements of people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

PSEUDONYM_BYTES = 12
NAMES_KEPT_MAX = 65_536


def pseudonyms(key: str) -> Callable[[str], str]:
    """Return a function from name to pseudonym, which is stable for a key and not reversible without it."""
    secret = hashlib.blake2b(key.encode(), person=b"roamcast names", digest_size=32).digest()

    @lru_cache(NAMES_KEPT_MAX)
    def pseudonym(name: str) -> str:
        return hashlib.blake2b(name.encode(), key=secret, digest_size=PSEUDONYM_BYTES).hexdigest()

    return pseudonym
