"""Members in use: text in, and text, words, vectors or classes out. `transduce.family.load` returns one of them."""
