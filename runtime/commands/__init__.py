"""The commands of this floor."""
