"""The learning problems: placement, dispatch, rollout and the queue."""
