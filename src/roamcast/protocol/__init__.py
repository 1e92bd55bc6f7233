"""Pure: the values and messages that brokers and clients exchange, and how they are encoded."""
