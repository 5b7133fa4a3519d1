"""The keys of scenario and job files, with their checks."""
