"""What can be read from the box while the engine works?"""
