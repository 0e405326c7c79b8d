"""Sections 5.2 to 5.4: batches in, updated weights out."""
