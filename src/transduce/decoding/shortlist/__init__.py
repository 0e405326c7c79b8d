"""Vocabulary shortlists: the target pieces that the output of a sentence may have, learned and searched."""
