"""Training of a job's model: GRPO in torch, data parallel over the job's training nodes."""
