"""A service: a coordinator that keeps running, to which jobs are submitted while others run."""
