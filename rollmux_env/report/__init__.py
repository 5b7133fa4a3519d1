"""Tables, files and plots of results."""
