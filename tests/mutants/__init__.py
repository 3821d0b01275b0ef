"""Mistakes made on purpose, and who notices them."""
