"""Pure: links between brokers: numbered messages, frames on the wire, and which brokers each peer
reaches."""
