"""The number of files, and so of connections, that this process may have open."""

from __future__ import annotations

import resource

OWN_FILES = 256
"""Files kept for the journal, snapshots, links, strangers at the link listener, HTTP and the control
channel: clients may not use these."""


def room_for(connections: int) -> int:
    """Raise the limit for this number of connections; return how many fit.

    If the system allows few files, half of them are reserved for the broker itself.
    """
    wanted = connections + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft - min(OWN_FILES, soft // 2)))
