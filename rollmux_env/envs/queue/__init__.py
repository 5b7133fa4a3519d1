"""The queue environment: which waiting job gets which place on a fixed fleet."""
