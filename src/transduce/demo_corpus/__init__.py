"""The corpus of the demo: English sentences from a small grammar, each with its one German translation.

grammar: sentences, and the corpus; phrases: noun phrases and places; syntax: trees, and how each language says them;
inflection: word forms by rule; lexicon: the dictionary.
"""
