"""Phrases that an output must have or must not have: in a text, as tokens in the search, and by line."""
