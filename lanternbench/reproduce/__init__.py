"""``reproduce``: a paper's table, measured with the paper's own settings, next to what it reports."""
