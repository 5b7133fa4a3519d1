"""The built-in job: GRPO training of a language model on a task."""
