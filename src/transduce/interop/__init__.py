"""Models for other programs, and from them."""
