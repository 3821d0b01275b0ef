"""Reports of run folders: the answer, tables, plots, one self-contained page, and the papers'
numbers.
"""
