"""Does everything that the agent needs work on this box, and what is to be done where not?"""
