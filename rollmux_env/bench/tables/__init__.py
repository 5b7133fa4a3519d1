"""Tables of phase seconds that others have published, restated with their source, for `rollmux bench --suite fidelity`."""
