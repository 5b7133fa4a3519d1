"""Transfer of new weights from the training ranks to the rollout workers: the plan, the streams, and their wire format."""
