"""Engines: start, ask and stop the servers that are measured; one file a kind."""
