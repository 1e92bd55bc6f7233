"""Logical mobility: where clients may go next, and what brokers must let through for them."""
