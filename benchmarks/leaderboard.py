"""Write the page docs/leaderboard.md from the entries in benchmarks/leaderboard/.

python benchmarks/leaderboard.py              write the page
python benchmarks/leaderboard.py --measure    measure all baselines again before, which takes minutes for each on two cores
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from policies.commands.leaderboard import enter, replaying_makers
from rollmux_env.bench.leaderboard.entries import (
    LeaderboardEntry,
    entry_json,
    entry_of,
    file_name,
    list_streams,
    measure,
    read_entry,
)
from rollmux_env.bench.leaderboard.tracks import CLAIRVOYANT, TRACKS, Entrant
from rollmux_env.files import write_whole
from rollmux_env.report.leaderboard import page

ENTRIES = Path(__file__).parent / "leaderboard"
PAGE = Path(__file__).parents[1] / "docs" / "leaderboard.md"
PLACEMENT = (
    *("rollmux", "rollmux,prune=false", "consolidate", "learned:default", "learned:default,moves=false"),
    *("learned:random,moves=false", "solo", "random", "most-idle", "first-fit", "resubmit"),
    *("fleet,order=area", "fleet,order=area,park=true"),
)
DISPATCH = ("round-robin", "fifo,migrate=0.8", "least-recently-served,migrate=0.8", "learned:default")
ROLLOUT = ("plain", "tail-batching", "learned:default")
TOGETHER = (
    Entrant("consolidate", "fifo,migrate=0.8", "tail-batching"),
    Entrant("learned:default", "learned:default", "learned:default"),
)
BASELINES = (
    *(Entrant(placement) for placement in PLACEMENT),
    *(Entrant(dispatch=dispatch) for dispatch in DISPATCH),
    *(Entrant(rollout=rollout) for rollout in ROLLOUT),
    *TOGETHER,
)


def main() -> None:
    """Measure the baselines if asked to, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure all baselines anew")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args()
    for entrant in (*BASELINES, CLAIRVOYANT) if options.measure else ():
        entry = clairvoyant() if entrant == CLAIRVOYANT else enter(entrant, options.workers)
        write_whole(ENTRIES / file_name(entrant), entry_json(replace(entry, author="RollMux")))
    write_whole(PAGE, page([read_entry(path) for path in sorted(ENTRIES.glob("*.json"))]))


def clairvoyant() -> LeaderboardEntry:
    """Measure the search that knows all durations on the streams of the track of dispatch."""
    streams = list_streams(CLAIRVOYANT, [track for track in TRACKS if track.needs == "dispatch"])
    measured = entry_of(CLAIRVOYANT, [measure(CLAIRVOYANT, stream, replaying_makers()) for stream in streams], {})
    return replace(measured, files={"clairvoyant": "rollmux_env/bench/leaderboard/clairvoyant.py"})


if __name__ == "__main__":
    main()
