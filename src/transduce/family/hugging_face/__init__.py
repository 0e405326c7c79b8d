"""Members in Hugging Face's form: config.json, and the names and shapes of the tensors.

`folder.py` reads and writes a folder. `conversion.py` is what the conversion of a member has. `settings.py` reads
values of an untrusted config.json, and `rope.py` those that scale rotary positions. Each other file is the conversion
of one member.
"""
