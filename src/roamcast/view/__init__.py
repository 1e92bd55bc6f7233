"""Replays of event logs: made from Parquet, served to the page of the live view, drawn as a picture."""
