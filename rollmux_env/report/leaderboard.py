"""The leaderboard: one entry's scores as a table, and all entries' scores as the page docs/leaderboard.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from rich.console import RenderableType
from rich.text import Text

from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.leaderboard.entries import LeaderboardEntry, TrackScore, track_score
from rollmux_env.bench.leaderboard.tracks import CLAIRVOYANT, REFERENCE, TRACKS, VERSION, Track
from rollmux_env.report.results import to_csv
from rollmux_env.report.tables import heading, make_table, percent

_HEADINGS = ("score", "fresh streams", "SLOs kept", "decision, ms")
LOWER = "lower than the fixed ones"
"""Mark of a score on fresh streams that is lower than on fixed streams, by more than the interval of the difference."""


def entry_tables(entry: LeaderboardEntry, tracks: Sequence[Track] = TRACKS) -> list[RenderableType]:
    """Return an entry's scores by track for a terminal, with a note on their scale."""
    table = make_table("track", *_HEADINGS)
    for track in tracks:
        if (score := track_score(track, entry)) is not None:
            table.add_row(track.name, *_cells(score))
    streams = sum(1 for result in entry.streams if not result.fresh)
    return [
        heading(f"RollMux-Bench {VERSION}: {entry.entrant.name}{f', by {entry.author}' if entry.author else ''}"),
        table,
        Text(f"{streams} fixed streams and as many that were drawn now; 0: {REFERENCE.name}; 100: the yardstick", style="dim"),
    ]


def entry_csv(entry: LeaderboardEntry) -> str:
    """Return the entry as CSV, with one line per stream."""
    names = ("kind", "seed", "fresh", "figure", "reference", "bound", "slo_kept", "moves", "decision_ms", "score")
    return to_csv(names, ([getattr(result, name) for name in names] for result in entry.streams))


def _cells(score: TrackScore) -> tuple[str, str, str, str]:
    marked = "" if score.agrees else f", {LOWER}"
    return _text(score.fixed), _text(score.fresh) + marked, percent(score.attainment, 0), f"{score.decision_ms:.2f}"


def _text(mean: Mean) -> str:
    return replace(mean, mean=round(mean.mean, 1) + 0.0).text(1)  # no -0.0


_HEAD = f"""\
# Leaderboard

This page ranks policies on the fixed streams of RollMux-Bench {VERSION}, track by track. [The
guide](guides/leaderboard.md) says how to enter. `python benchmarks/leaderboard.py` writes this page
from the entries in `benchmarks/leaderboard/`.

A score is the mean over fixed public streams, with its 95% interval: 0 for the reference
(`{REFERENCE.placement}`, `{REFERENCE.dispatch}`, `{REFERENCE.rollout}`), 100 for the track's yardstick. *Fresh streams* is
the score on as many streams that were drawn when the entry was measured. *SLOs kept* is the share
of all these streams on which every job kept its SLO; a stream on which a job did not scores 0 at
most, and an entry with such a stream ranks below all that have none. Entries whose scores are the
same share a rank (`=`). Decision times are those on the entry's machine. `dispatch clairvoyant` is
no entry, and has no rank: a search that knows all durations, as a mark of what an order can gain.
"""


def page(entries: Sequence[LeaderboardEntry]) -> str:
    """Return the page of all entries, with one table per track; the best score on fixed streams comes first."""
    parts = [_HEAD]
    for track in TRACKS:
        scores = [(entry, score) for entry in entries if (score := track_score(track, entry)) is not None]
        parts.append(f"## {track.title}\n\n{_table(scores)}")
    return "\n".join(parts)


def _table(scores: Sequence[tuple[LeaderboardEntry, TrackScore]]) -> str:
    ranked = sorted(scores, key=lambda one: (not one[1].keeps_slos, -one[1].fixed.mean, one[0].entrant.name))
    lines = [f"| | entry | author | {' | '.join(_HEADINGS)} |", "|---" * (3 + len(_HEADINGS)) + "|"]
    ranks = iter(_ranks([score for entry, score in ranked if entry.entrant != CLAIRVOYANT]))
    for entry, score in ranked:
        rank = "" if entry.entrant == CLAIRVOYANT else next(ranks)
        lines.append(f"| {rank} | {_link_entry(entry)} | {_one_cell(entry.author)} | {' | '.join(_cells(score))} |")
    return "\n".join(lines) + "\n"


def _ranks(scores: Sequence[TrackScore]) -> list[str]:
    """Return the ranks of sorted scores. Those that keep SLOs alike and have the same score, as shown, share one."""
    keys = [(score.keeps_slos, round(score.fixed.mean, 1)) for score in scores]  # as sorted: intervals would divide a tie
    return [f"{keys.index(key) + 1}{'=' if keys.count(key) > 1 else ''}" for key in keys]


def _one_cell(text: str) -> str:
    """Return a user's text as Markdown of one cell of a table."""
    return " ".join(escape(text, quote=False).split()).replace("|", r"\|")


def _link_entry(entry: LeaderboardEntry) -> str:
    """Return the name of an entry, with links to its page and to those of its files that the repository has."""
    name = f"`{entry.entrant.name}`"
    named = f"[{name}]({entry.link})" if entry.link else name
    own = [f"`{file}`" if policy in entry.sources else f"[code](../{file})" for policy, file in entry.files.items()]
    return ", ".join([named, *dict.fromkeys(own)])
