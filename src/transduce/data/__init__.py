"""Section 5.1: files in, batches out."""
