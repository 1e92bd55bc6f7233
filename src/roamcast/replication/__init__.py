"""Replicated sites: leadership, the in-sync set, and the release of effects. Decisions only: no clock, no
socket."""
