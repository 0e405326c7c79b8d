"""What members learn: the tasks that the training loop takes (`config/kinds.py`), and the scores of their texts."""
