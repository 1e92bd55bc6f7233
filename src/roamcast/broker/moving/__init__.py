"""Pure: the broker machine for brokers that move."""
