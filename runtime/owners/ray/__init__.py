"""Jobs with a task or a class: their processes on Ray, and what these say to the coordinator."""
