"""Built-in and class jobs: the calls that their processes on Ray make to the coordinator."""
