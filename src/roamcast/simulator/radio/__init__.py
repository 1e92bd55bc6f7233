"""A radio channel: stations move, receive some of each other's frames, and share one frequency."""
