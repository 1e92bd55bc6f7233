"""Experiments: runs of whole networks, their figures in numbers and in pictures."""
