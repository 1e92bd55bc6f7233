"""Filters: matching, covering and overlap, and an index that finds matching filters quickly."""
