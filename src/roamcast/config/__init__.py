"""Configuration as typed tables: reading with helpful errors, and writing with comments."""
