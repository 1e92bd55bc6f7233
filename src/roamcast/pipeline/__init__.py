"""Questions to the event logs, answered by Spark on a laptop or a cluster, and small ones by DuckDB.

Only `filters` and the record schema are seen from here: what a run should have
delivered is worked out again, never taken from a broker's word.
"""
