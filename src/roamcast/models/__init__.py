"""The analytic parts of the seeds: messaging cost, where moving clients are, and fitted curves.

Every module is formulas only. They are independent of simulator and broker, so that they can validate
simulations.
"""
