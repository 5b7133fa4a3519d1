"""Job files, and the models and tasks that they name."""
