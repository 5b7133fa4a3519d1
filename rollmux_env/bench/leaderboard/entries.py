"""An entry of the leaderboard: an entrant's results on every stream, as a JSON file, and the resulting scores."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import version
from math import hypot
from os import cpu_count
from pathlib import Path
from secrets import randbelow
from statistics import median_high
from typing import Annotated, Any

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from rollmux_env.bench.intervals import Mean, mean_interval, ratio
from rollmux_env.bench.leaderboard.tracks import REFERENCE, TRACKS, VERSION, Entrant, Track, kind_named
from rollmux_env.bench.suite import Makers
from rollmux_env.errors import InputError, PlanError
from rollmux_env.files import read_text
from rollmux_env.portable import FIRST_DRAWN_SEED
from rollmux_env.user_code import seeded
from rollmux_env.validation_errors import format_error, problems


@dataclass(frozen=True)
class StreamResult:
    """The result of an entrant on one stream.

    Attributes:
        kind: Kind of the stream.
        seed: Seed of the stream.
        sha256: SHA-256 of the stream.
        fresh: Whether the seed was drawn when the entrant was measured.
        figure: Figure of the entrant: dollars per work-hour, or hours of mean completion in `fleet`.
        reference: Figure of the reference.
        bound: Figure of the track's yardstick, which is a strict bound only in `dispatch` and `fleet`.
        slo_kept: Whether all of the entrant's jobs kept their SLO.
        moves: Number of moves of running jobs.
        decision_ms: Time of a decision in milliseconds, as in `Played`.
    """

    kind: str
    seed: int
    sha256: str
    fresh: bool
    # Entries that were written before there were fleets have the names of dollars.
    figure: Annotated[float, Field(validation_alias=AliasChoices("figure", "usd"))]
    reference: Annotated[float, Field(validation_alias=AliasChoices("reference", "reference_usd"))]
    bound: Annotated[float, Field(validation_alias=AliasChoices("bound", "bound_usd"))]
    slo_kept: bool
    moves: int
    decision_ms: float

    @property
    def score(self) -> float:
        """Score: 0 for the reference's figure, 100 for the yardstick's; at most 0 if an SLO is broken."""
        least = max(self.reference - self.bound, 1e-6 * self.reference)
        gained = 100 * (ratio(self.reference - self.figure, least) or 0.0)  # if everything is free, no policy can gain
        return gained if self.slo_kept else min(0.0, gained)


@dataclass(frozen=True)
class LeaderboardEntry:
    """An entrant's results.

    Attributes:
        benchmark: Version of the leaderboard.
        rollmux: Version of the package.
        entrant: Policies that were measured.
        sources: SHA-256 of each of the entrant's files, by the name of its policy.
        machine: Machine on which it was measured.
        streams: Results by stream.
        author: Name of the entry's author, or an empty text.
        link: Address of a page about the entry, or an empty text.
        files: Name of the file of each of the entrant's policies, by the name of the policy.
    """

    benchmark: int
    rollmux: str
    entrant: Entrant
    sources: Mapping[str, str]
    machine: Mapping[str, str]
    streams: tuple[StreamResult, ...]
    author: str = ""
    link: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrackScore:
    """The score of an entry in one track.

    Attributes:
        fixed: Mean score over the fixed streams.
        fresh: Mean score over the fresh streams.
        attainment: Share of all streams in which every job kept its SLO.
        decision_ms: Median over all streams of `StreamResult.decision_ms`.
    """

    fixed: Mean
    fresh: Mean
    attainment: float
    decision_ms: float

    @property
    def keeps_slos(self) -> bool:
        """Whether every job of every stream kept its SLO."""
        return self.attainment == 1

    @property
    def agrees(self) -> bool:
        """Whether fresh streams score no less than fixed ones, within the interval of the difference."""
        widths = self.fixed.half_width or 0.0, self.fresh.half_width or 0.0
        return self.fresh.mean >= self.fixed.mean - hypot(*widths)


def track_score(track: Track, entry: LeaderboardEntry) -> TrackScore | None:
    """Return the score of an entry in a track, or None if the entry is not in the track.

    An entry that moves jobs is not in a track that allows no moves.
    """
    own = [result for result in entry.streams if result.kind in track.kinds]
    if not track.takes(entry.entrant) or not own or (not track.moves and any(result.moves for result in own)):
        return None
    fixed, fresh = ([result.score for result in own if result.fresh == drawn] for drawn in (False, True))
    decision_ms = median_high(result.decision_ms for result in own)
    return TrackScore(mean_interval(fixed), mean_interval(fresh), sum(one.slo_kept for one in own) / len(own), decision_ms)


def list_streams(entrant: Entrant, tracks: Sequence[Track] = TRACKS) -> list[tuple[str, int, bool]]:
    """Return the streams of an entrant's tracks: kind, seed, and whether the seed is drawn now.

    Drawn seeds differ between runs.
    """
    each = {kind: track.each for track in tracks if track.takes(entrant) for kind in track.kinds}
    fixed = [(kind, seed, False) for kind, count in each.items() for seed in range(count)]
    fresh = [(kind, FIRST_DRAWN_SEED + randbelow(2**31 - FIRST_DRAWN_SEED), True) for kind, _, _ in fixed]
    return fixed + fresh


def measure(entrant: Entrant, stream: tuple[str, int, bool], makers: Makers) -> StreamResult:
    """Measure an entrant, the reference and the yardstick on one of `list_streams`.

    Args:
        entrant: Policies to measure.
        stream: Kind, seed, and whether the seed was drawn.
        makers: Factories of policies.

    Raises:
        InputError: If there are no such policies.
        PlanError: If a policy broke an invariant, or the score is above what is possible.
    """
    kind, seed, fresh = stream
    with seeded(seed):
        own = kind_named(kind).play(seed, entrant, makers)
    result = StreamResult(kind, seed, fresh=fresh, **_standards(kind, seed, makers), **own._asdict())
    if not result.score <= kind_named(kind).most * (1 + 1e-6):
        raise PlanError(f"{entrant.name}: it scores {result.score:,.1f} on {kind}, seed {seed}, where 100 is the yardstick")
    return result


@lru_cache(maxsize=512)
def _standards(name: str, seed: int, makers: Makers) -> dict[str, Any]:
    """Return the hash of a stream and the figures of the reference and the yardstick on it."""
    kind = kind_named(name)
    reference = kind.play(seed, REFERENCE, makers)
    return {"sha256": kind.sha256(seed), "reference": reference.figure, "bound": kind.bound(seed, makers)}


def entry_of(entrant: Entrant, streams: Iterable[StreamResult], sources: Mapping[str, str]) -> LeaderboardEntry:
    """Return the entry of an entrant that was measured on this machine."""
    machine = {"system": platform.platform(), "processors": str(cpu_count()), "python": platform.python_version()}
    return LeaderboardEntry(VERSION, version("rollmux"), entrant, sources, machine, tuple(streams))


@cache
def _adapter() -> TypeAdapter[LeaderboardEntry]:
    return TypeAdapter(LeaderboardEntry)


def entry_json(entry: LeaderboardEntry) -> str:
    """Return the text of an entry's file."""
    return _adapter().dump_json(entry, indent=1).decode() + "\n"


def read_entry(path: Path) -> LeaderboardEntry:
    """Read the file of an entry.

    Raises:
        InputError: If the file is not an entry, or belongs to another version of the leaderboard.
    """
    try:
        entry = _adapter().validate_json(read_text(path))
    except ValidationError as error:
        raise InputError(f"{path}: {format_error(problems(error)[0], None)}") from None
    if entry.benchmark != VERSION:
        raise InputError(f"{path}: benchmark: is {entry.benchmark}, and scores compare with {VERSION} alone; run it again")
    return entry


def file_name(entrant: Entrant) -> str:
    """Return the name of an entry's file."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in entrant.name)
    return "-".join(part for part in letters.split("-") if part) + ".json"
