"""The plant's side: boxes' messages collected, stored, receipted, looked at and asked for."""
