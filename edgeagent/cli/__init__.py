"""Words in, exit status out; the only code that prints."""
