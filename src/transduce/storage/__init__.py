"""The formats on disk: checkpoints, models, runs, logs."""
