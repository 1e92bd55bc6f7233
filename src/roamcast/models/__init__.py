"""The analytic parts of the seeds: messaging cost, where moving clients are, and fitted curves.

Every module is formulas only. Nothing here knows of a simulator or a broker, so that a simulation
can be judged by what these say.
"""
