"""The built-in job: GRPO on a language model and a task."""
