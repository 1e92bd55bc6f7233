"""The broker as a process: sockets in front, peer links behind, a journal on disk."""
