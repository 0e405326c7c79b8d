"""The tables of the paper as commands."""
