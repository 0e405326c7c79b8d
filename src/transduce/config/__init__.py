"""The settings of a run, their checks, and config.json."""
