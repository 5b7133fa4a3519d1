"""Carries out a schedule on Ray: nodes, permits, the processes of jobs, and who watches over them."""
