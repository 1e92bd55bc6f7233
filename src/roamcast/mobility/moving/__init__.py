"""Pure: protocols for brokers that move, and the election that makes their tree."""
