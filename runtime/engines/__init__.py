"""What samples responses: `interface` says what an engine does, `make_engine` makes one."""
