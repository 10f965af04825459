"""Is this file signed, and by whom?"""
