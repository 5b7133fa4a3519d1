"""Simulation of the fabric of leaf switches, with optical circuits: what reproduces OrchestrRL, and nothing of the core."""
