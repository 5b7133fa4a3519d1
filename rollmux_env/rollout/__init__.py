"""The inside of a rollout: requests on replicas, and what a rollout policy may do with them."""
