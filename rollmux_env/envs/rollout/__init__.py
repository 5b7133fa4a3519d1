"""The rollout environment: what happens inside the rollouts of one job."""
