"""Analyses of event logs, with Spark on a laptop or a cluster, and with DuckDB for small logs.

This room imports only `filters` and the record schema: it computes independently what a run should have
delivered, and does not trust brokers.
"""
