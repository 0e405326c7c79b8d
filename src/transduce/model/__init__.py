"""Section 3: tensors in, tensors out. No module here knows text, a loss or a search."""
