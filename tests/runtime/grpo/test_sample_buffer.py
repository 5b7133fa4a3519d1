"""What is sampled and not trained on: bounded by the staleness, in order, and in the checkpoint as it was."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from runtime.engines.interface import Response
from runtime.grpo.asynchronous import SampleBuffer
from runtime.grpo.messages import RolloutSamples, SampledRollout, ShareSamples
from runtime.grpo.state import read_rollouts, write_rollouts
from runtime.grpo.training_worker import check_versions


def put(buffer: SampleBuffer, number: int | None) -> None:
    assert number is not None
    buffer.put(SampledRollout(number, RolloutSamples()))


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_sampling_is_never_further_ahead_than_the_staleness_allows(staleness: int) -> None:
    """One that samples as fast as it may, beside trainings that are slow: seen at every beginning."""
    iterations, buffer = 12, SampleBuffer(staleness, 12)
    landed, ahead = 0, []

    def sample() -> None:
        while (number := buffer.begin()) is not None:
            ahead.append(number - landed)
            put(buffer, number)

    sampler = Thread(target=sample)
    sampler.start()
    for number in range(iterations):
        assert buffer.take(number).number == number
        buffer.trained()
        landed += 1  # before the buffer knows, so that nobody can be seen too early
        buffer.landed()
    sampler.join()
    assert len(ahead) == iterations and max(ahead) <= staleness and not buffer.rollouts


def test_whoever_trains_is_told_why_there_are_no_more_samples_when_it_has_used_those_there_are() -> None:
    buffer = SampleBuffer(1, 5)
    put(buffer, buffer.begin())
    buffer.fail(RuntimeError("an engine has died"))
    assert buffer.take(0).number == 0
    buffer.trained()
    with pytest.raises(RuntimeError, match="an engine has died"):
        buffer.take(1)


def test_a_pause_lets_nothing_begin_and_what_was_dropped_begins_anew() -> None:
    buffer, begun = SampleBuffer(2, 5), list[int | None]()
    assert buffer.begin() == 0
    buffer.pause()
    buffer.drop()
    buffer.wait_until_idle()
    waiting = Thread(target=lambda: begun.append(buffer.begin()))
    waiting.start()
    assert buffer.resume() and not buffer.resume()
    waiting.join()
    assert begun == [0]
    buffer.close()
    assert buffer.begin() is None


def test_a_buffer_that_cannot_be_is_refused() -> None:
    late = [SampledRollout(number, RolloutSamples()) for number in (3, 4, 5)]
    assert SampleBuffer(2, 9, 3, late).version == 3
    for staleness, version in ((1, 3), (2, 2)):
        with pytest.raises(ValueError, match="do not follow"):
            SampleBuffer(staleness, 9, version, late)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 9), st.integers(0, 4))
def test_s1_is_asserted_of_every_token(versions: list[int], trained: int, staleness: int) -> None:
    fits = all(0 <= trained - version <= staleness for version in versions)
    try:
        check_versions(trained, np.array(versions), staleness)
    except RuntimeError as error:
        assert not fits and str(error).startswith("S1: ")
    else:
        assert fits


def test_samples_are_read_as_they_were_written_with_the_version_of_every_token(tmp_path: Path) -> None:
    first = Response(0, (5, 6, 7), (-0.1, -1 / 3, -2.5), True, 4, (3, 3))
    second = Response(1, (9,), (-1e-7,), True, 3)
    assert first.versions == (3, 3, 4)
    share = ShareSamples(1, ((1, 2), (1, 2)), (first, second), (1.0, 0.25))
    empty = ShareSamples(0, (), (), ())
    waiting = SampledRollout(4, RolloutSamples(("a call",), [8, 11]))
    waiting.reported.metrics["reward"] = 0.625
    write_rollouts(tmp_path, 4, [waiting], lambda calls: [[share, empty] for _ in calls])
    version, (again,) = read_rollouts(tmp_path)
    assert version == again.number == 4 and again.rolled.complete == [8, 11] and again.reported.metrics == {"reward": 0.625}
    assert again.rolled.samples == ([share, empty],)
    (tmp_path / "more").mkdir()
    write_rollouts(tmp_path / "more", 4, [again], lambda _: pytest.fail("nothing is left to fetch"))
    assert read_rollouts(tmp_path / "more")[1][0].rolled == again.rolled
    with pytest.raises(InputError, match="of a job without a staleness"):
        read_rollouts(tmp_path / "..")
