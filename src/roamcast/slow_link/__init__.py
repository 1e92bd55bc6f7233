"""Slow links in user space: a TCP relay with the rate, the delay and the errors of a radio network."""
