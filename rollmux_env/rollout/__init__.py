"""The simulator of rollouts: requests on replicas, and the interface for rollout policies."""
