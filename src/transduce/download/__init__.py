"""Public corpora: from the files on a server to clean text, line by line, for training and test."""
