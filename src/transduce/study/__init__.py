"""Studies: the tables of the paper as commands."""
