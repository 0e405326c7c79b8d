"""The tour: an embedded corpus, a short training, and what to do next."""
