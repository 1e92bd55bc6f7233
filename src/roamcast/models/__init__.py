"""Analytic models of the research documents: messaging cost, positions of moving clients, and fitted curves.

Every module holds formulas only. They are independent of simulator and broker, so that they can validate
simulations.
"""
