"""RollMux-Bench: a versioned benchmark of policies that others can enter (docs/leaderboard.md)."""
