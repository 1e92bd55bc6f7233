"""A radio channel: stations that move, hear each other or not, and share one frequency."""
