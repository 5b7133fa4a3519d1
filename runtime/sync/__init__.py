"""New weights on their way from the training ranks to the rollout workers: what goes where, and how it gets there."""
