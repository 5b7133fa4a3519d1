"""The machines that jobs run on: nodes and hosts of the pools, Ray and its health, processes, and a forecast of memory."""
