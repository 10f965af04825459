"""Load: drive requests and see, to the microsecond, what comes back."""
