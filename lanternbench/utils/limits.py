"""Limits of settings, the same for every command and from Python."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 10.0  # or 0, which is greedy
MAX_GUIDANCE = 1000.0
