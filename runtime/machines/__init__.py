"""The machines on which jobs run: nodes and hosts of the pools, Ray and its health, processes, and memory forecasts."""
