"""What people look at: tables, files and plots of results."""
