"""Broker and client as state machines, and how a client's session is found."""
