"""Hugging Face's form of each member: its config.json, and the names and shapes of its tensors.

`form.py` is what a form has, `settings.py` reads values of an untrusted config.json. `rope.py` is the part of it that
scales rotary positions. `family/weights.py` reads and writes the folders.
"""
