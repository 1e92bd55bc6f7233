"""Filters: what they match, how they relate to each other, and finding those that match quickly."""
