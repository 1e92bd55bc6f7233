"""What a replica must remember beside its journal: the ids of its disk, and who wrote which entries."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from roamcast.errors import InputError
from roamcast.storage.segments import sync_folder

NAME = "replica.json"


class ReplicaState(msgspec.Struct):
    disks: list[str] = []
    """Ids that etcd may know this disk by (see `replication.replica`)."""
    terms: list[tuple[int, int]] = []
    """The epochs of the journal, and the first entry of each (see `replication.terms`)."""


def read_state(data: Path) -> ReplicaState:
    """The state in a data folder; an empty one at the first start."""
    path = data / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReplicaState)
    except FileNotFoundError:
        return ReplicaState()
    except (OSError, msgspec.MsgspecError) as error:
        why = f"cannot be read ({error}); delete it, and the replica is sent a copy"
        raise InputError(f"{path}: {why}") from None


def write_state(data: Path, state: ReplicaState) -> None:
    """Write it, and return when a power loss cannot take it any more."""
    path = data / NAME
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(data)
