"""Recipes that reproduce a result of the documentation or a row of the paper's tables. Each is for one text."""
