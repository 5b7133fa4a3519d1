"""The state of a job between its phases: in host memory, ready to return to the device."""
