"""Jobs that run elsewhere: leases of their places, which their owners hold and the coordinator keeps."""
