"""Store: what a run leaves on disk, written so that a power cut loses one line at most."""
