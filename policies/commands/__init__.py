"""The commands that schedule, one module each, imported when it is called."""
