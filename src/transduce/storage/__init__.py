"""What is on disk: checkpoints, models, runs, logs."""
