"""Questions to the event logs, answered by Spark: on a laptop and on a cluster with the same code.

Only `filters` and the record schema are seen from here: what a run should have
delivered is worked out again, never taken from a broker's word.
"""
