"""State of a replica besides its journal: the ids of its disk, and the epochs of the entries."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from roamcast.errors import InputError
from roamcast.storage.segments import sync_folder

NAME = "replica.json"


class ReplicaState(msgspec.Struct):
    disks: list[str] = []
    """Ids by which etcd may know this disk (see `replication.replica`)."""
    terms: list[tuple[int, int]] = []
    """Epochs of the journal, each with its first entry (see `replication.terms`)."""


def read_state(data: Path) -> ReplicaState:
    """Read the state from a data folder; empty at the first start."""
    path = data / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReplicaState)
    except FileNotFoundError:
        return ReplicaState()
    except (OSError, msgspec.MsgspecError) as error:
        why = f"cannot be read ({error}); delete it, and the replica is sent a copy"
        raise InputError(f"{path}: {why}") from None


def write_state(data: Path, state: ReplicaState) -> None:
    """Write the state durably: it survives a power loss."""
    path = data / NAME
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
