"""The family: what was built from the Transformer of 2017, each descendant as a small piece beside it."""
