"""Members that hear: a sound is read and turned into features, and then an encoder's tokens are moments in time."""
