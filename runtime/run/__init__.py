"""A run, from its start or from where it was interrupted: the driver, its Ray, and the backends of each kind of job."""
