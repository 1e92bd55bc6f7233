"""Pure: links between brokers: numbered messages, frames on the wire, and who is reached through whom."""
