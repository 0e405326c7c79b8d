"""The quality of a corpus: what looks wrong in it, a corpus without it, and translations added to it."""
