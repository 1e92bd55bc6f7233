"""The journal on disk: segments, snapshots, recovery."""
