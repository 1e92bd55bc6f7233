"""Replays of event logs: built from Parquet, served to the live view's page, or drawn as a picture."""
