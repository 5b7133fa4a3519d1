"""A job's own processes: its controller, the session that asks for permits, its workers and its checkpoints."""
