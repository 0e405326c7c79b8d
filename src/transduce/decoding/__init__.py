"""Section 6.1: probabilities in, sentences out."""
