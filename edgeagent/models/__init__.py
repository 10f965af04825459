"""A model's facts, read from its file; and its hash."""
