"""The commands on scenario files, and how commands are found."""
