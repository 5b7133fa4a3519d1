"""The arithmetic: compiled functions over arrays. What is called in a loop over jobs, groups or candidates lives here."""
