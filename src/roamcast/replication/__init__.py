"""Replicated sites: who leads, who is in sync, and what may leave. Decisions only: no clock, no socket."""
