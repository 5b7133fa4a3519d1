"""The commands of this floor, a module each. Heavy imports are inside the functions, so that `rollmux --help` is fast."""
