"""The timeout of RollPacker's reward scheduler (arXiv 2509.21009): how long the test of a response may run before it fails.

Rewards are computed as responses finish. A test may run 1.5 times as long as the longest run so far of a correct
response to the same prompt, and between 2 and 30 seconds. Programs that loop forever do not delay the round.
"""

from __future__ import annotations

from collections.abc import Mapping


class RewardTimeout:
    """T = min(max(least, factor * anchor), most), anchor the longest run of a correct response of that test so far.

    Args:
        anchors: {test: its anchor, seconds}, as an earlier object left them in `anchors`.
        least_s, factor, most_s: the paper's 2 s, 1.5 and 30 s.

    Raises:
        ValueError: not 0 < least_s <= most_s, or a factor below 1.
    """

    def __init__(
        self, anchors: Mapping[str, float] | None = None, least_s: float = 2.0, factor: float = 1.5, most_s: float = 30.0
    ) -> None:
        if not (0 < least_s <= most_s < float("inf") and 1 <= factor < float("inf")):
            raise ValueError("reward timeout: must have 0 < least_s <= most_s and a factor of at least 1")
        self.anchors = dict(anchors or {})
        self._least_s, self._factor, self._most_s = least_s, factor, most_s

    def seconds(self, test: str) -> float:
        """Return the time limit of the next run of a test: `most_s` until it has a correct response."""
        if test not in self.anchors:
            return self._most_s
        return min(max(self._least_s, self._factor * self.anchors[test]), self._most_s)

    def correct(self, test: str, seconds: float) -> None:
        """Record the run time of a correct response."""
        self.anchors[test] = max(seconds, self.anchors.get(test, 0.0))

    def learn(self, anchors: Mapping[str, float]) -> None:
        """Merge the anchors of other engines, {test: its anchor, seconds}."""
        for test, seconds in anchors.items():
            self.correct(test, seconds)
