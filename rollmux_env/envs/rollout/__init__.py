"""The rollout environment: the decisions inside the rollouts of one job."""
