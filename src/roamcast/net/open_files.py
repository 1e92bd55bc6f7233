"""How many files, and so connections, this process may have open at once."""

from __future__ import annotations

import resource

OWN_FILES = 256
"""For journal, snapshots, links, strangers at the link listener, HTTP and the control channel: clients may
not take these."""


def room_for(connections: int) -> int:
    """Raise the limit for this number of connections; returns how many there is room for.

    Where the system allows few files, half of them are the broker's own.
    """
    wanted = connections + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft - min(OWN_FILES, soft // 2)))
