"""A process for tests to kill: it commits entries and says which, and takes snapshots as it goes.

    python journal_writer.py FOLDER process|group

Its state is the number of the last entry, which is also what its snapshots hold.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from roamcast.storage.journal import Journal


def main() -> None:
    folder, sync = sys.argv[1:]
    journal, recovered = Journal.open(
        Path(folder),
        sync="group" if sync == "group" else "process",
        version="1",
        segment_bytes=64 << 10,
        snapshot_after_bytes=200_000,
        snapshot_retry_s=0.0,
    )
    state = int(recovered.snapshot or b"0")
    for entry in recovered.entries:
        number = int(entry.partition(b":")[0])
        assert number == state + 1, f"{number} after {state}"
        state = number
    print("recovered", state, flush=True)
    rng = random.Random(state)
    while True:
        entries = []
        for _ in range(rng.randint(1, 5)):
            state += 1
            entries.append(f"{state}:".encode().ljust(rng.randint(20, 3_000), b"x"))
        for one in entries[:-1]:
            journal.append(one)
        journal.write(entries[-1])
        # Unbuffered: it is said before anything else happens.
        os.write(1, f"committed {state}\n".encode())
        outcome = journal.poll_snapshot()
        if outcome is not None:
            os.write(1, f"snapshot {outcome.sequence} {outcome.error}\n".encode())
        if journal.wants_snapshot:
            held = b"%d" % state
            journal.begin_snapshot().write_in_child(lambda held=held: held)  # type: ignore[misc]


if __name__ == "__main__":
    main()
