"""What a run is: its settings, their checks, and config.json."""
