"""The whole placement problem in plain Python, to be read in an hour: see README.md."""
