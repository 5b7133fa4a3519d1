"""The commands for runs and services: one module each, imported when it is called."""
