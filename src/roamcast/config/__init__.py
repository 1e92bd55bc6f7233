"""Configuration as typed tables: reading it with good errors, and writing it down with comments."""
