"""Pure: how brokers form one acyclic overlay."""
