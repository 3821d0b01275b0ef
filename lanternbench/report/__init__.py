"""Reports of run folders: the answer, tables, pictures, one self-contained page, and the papers'
numbers.
"""
