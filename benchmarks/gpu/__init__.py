"""Prove and measure on one GPU what can only be shown there: ``python -m benchmarks.gpu``, or
``make gpu``.

A piece is one file's function; each runs in a process of its own under a time limit and writes its
result as it goes, so that what raises, hangs or is killed costs its own figures alone, and a
second call makes only what is missing. docs/gpu.md says how to use it.
"""
