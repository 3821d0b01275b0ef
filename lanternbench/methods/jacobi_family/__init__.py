"""The mathematics of the Jacobi family since SJD, as pure functions of tensors and explicit uniforms.

``coupling``: coupled redraws (SCD).  ``sibling_tree``: the tree after a rejection (SJD-PAC).  ``grouping``: grouped
acceptance (GSD).  What the public code does differently is a variant beside each definition.
"""
