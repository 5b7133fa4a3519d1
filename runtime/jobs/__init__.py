"""What a run is asked to do: job files, and the models and tasks that they name."""
