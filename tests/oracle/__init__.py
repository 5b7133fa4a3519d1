"""Plain definitions of what the packages compute: simple, slow, exact, and written from the rules alone.

Nothing here imports the code under test, so that a mistake would have to be made twice to go unseen.
"""
