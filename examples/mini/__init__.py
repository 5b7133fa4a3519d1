"""The whole placement problem in plain Python, readable in an hour: see README.md."""
