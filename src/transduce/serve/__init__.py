"""The translation service: requests over HTTP in, the answers of `translate` out."""
