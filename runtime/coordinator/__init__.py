"""The one process of a run or a service: which jobs are where, what they are permitted, and what follows when one ends or fails."""
