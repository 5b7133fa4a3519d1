"""Where a job's state is between its phases: in host memory, ready to come back."""
