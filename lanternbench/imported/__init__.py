"""Tokens and images that other code made, as a run folder: scored by the same target and metrics
as other runs.
"""
