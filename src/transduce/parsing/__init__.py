"""§6.3: constituency parsing. Trees as text, their scores, and a search that always gives a tree."""
