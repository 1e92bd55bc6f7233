"""Pure: routing tables: matching, covering, merging, and filters that depend on where a client is."""
