"""The placement environment: which group an arriving job joins, and which running jobs are moved."""
