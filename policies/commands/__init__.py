"""The commands of this package, one module each. Heavy imports are inside the functions, so that `rollmux --help` is fast."""
