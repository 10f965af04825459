"""How do people get to see a run, while it goes on and afterwards?"""
