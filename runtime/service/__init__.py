"""A service: a coordinator that stays, to which jobs are submitted while others run."""
