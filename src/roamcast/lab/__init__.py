"""Experiments: runs of whole networks, with figures as numbers and pictures."""
