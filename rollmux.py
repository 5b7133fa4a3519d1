"""RollMux: co-execution groups of RL post-training jobs over a rollout pool and a training pool."""
