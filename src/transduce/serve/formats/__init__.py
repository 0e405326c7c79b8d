"""File formats: the texts of a file, with their places, and the file with the translations."""
