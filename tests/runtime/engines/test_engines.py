"""Both engines sample what transformers' model says, before and after every kind of weight update."""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from rollmux_env.errors import InputError
from runtime.engines import make_engine, vllm_problem
from runtime.engines.interface import Engine, Response, Sampling, SamplingProgress
from runtime.engines.torch_engine import TorchEngine
from runtime.engines.vllm_engine import _CPU_FULL_SEQUENCES, VllmEngine
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import WeightStage, pieces
from tests.runtime.engines.models import END, greedy, saved, scores, tiny
from tests.runtime.sockets import LOOPBACK, listening

PROMPTS = [[5], [9, 30, 7, 41, 8, 22], [3, 17, 60], [9, 30, 7, 41, 8, 22], [80, 2, 44, 13, 6, 50, 71, 90, 33], [64, 12]]
GREEDY = Sampling(temperature=0, max_tokens=20)
RANDOM = Sampling(temperature=0.8, max_tokens=20, seed=11)


@pytest.fixture(scope="module", params=["torch", "vllm"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if request.param == "vllm" and (problem := vllm_problem(torch.cuda.is_available())):
        pytest.skip(problem)
    folder = saved(tmp_path_factory.mktemp("model"), seed=0)
    options = {"max_num_seqs": 200, "max_model_len": 128, "enforce_eager": True} if request.param == "vllm" else {}
    made = make_engine(request.param, folder, max_length=128, seed=0, threads=1, tensor_parallel=1, options=options)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _same_weights(engine: Engine) -> None:
    engine.restore()
    engine.update_weights(tiny(0).state_dict(), 0)


def _agrees(engine: Engine, model: Any) -> None:
    for response, prompt in zip(engine.generate(PROMPTS, GREEDY), PROMPTS, strict=True):
        tokens, logprobs = greedy(model, prompt, GREEDY.max_tokens)
        assert list(response.token_ids) == tokens
        assert response.logprobs == pytest.approx(logprobs, abs=1e-3)
        assert response.finished
        assert response.version == engine.version


def test_greedy_is_what_the_plain_model_says(engine: Engine) -> None:
    _agrees(engine, tiny(0))


def test_the_room_of_the_cache_is_that_of_its_memory(engine: Engine) -> None:
    if isinstance(engine, VllmEngine) and not torch.cuda.is_available():
        assert engine.kv_tokens == _CPU_FULL_SEQUENCES * 128, "blocks for as many responses of 128 tokens"
    else:
        assert engine.kv_tokens > 200 * 128, "a batch of the fixture"


def test_nothing_is_compiled_on_a_cpu_also_where_a_model_of_transformers_was_loaded_before(engine: Engine) -> None:
    torch.compiler.reset()  # else what was compiled before is used
    counters.clear()
    engine.generate(PROMPTS, RANDOM)
    assert torch.cuda.is_available() or not counters["frames"]


def test_an_engine_listens_on_loopback_alone(engine: Engine) -> None:
    assert {host for host, _ in listening([os.getpid()])} <= set(LOOPBACK)
    assert isinstance(engine, TorchEngine) or os.environ["GLOO_SOCKET_IFNAME"] == "lo"  # whatever the machine's name stands for


def test_more_prompt_tokens_than_one_step_reads(engine: Engine) -> None:
    prompts = [[2 + row, *range(2, 94)] for row in range(60)]  # 5,580 tokens, and a seed
    responses = engine.generate(prompts, replace(RANDOM, max_tokens=2))
    assert all(response.finished for response in responses)


def test_greedy_after_every_kind_of_weight_update(engine: Engine) -> None:
    engine.update_weights(tiny(1).state_dict(), 1)  # at once
    _agrees(engine, tiny(1))

    engine.offload()  # away and back
    engine.restore()
    assert engine.version == 1
    _agrees(engine, tiny(1))

    stage, new = WeightStage(), tiny(2).state_dict()  # staged while away
    engine.offload()
    stage.begin(WeightLayout.of(new), 2)
    for offset, piece in pieces(new, WeightLayout.of(new), most=1000):
        stage.receive(2, offset, piece)
    engine.restore(stage.weights(), stage.version)
    stage.close()
    assert engine.version == 2
    _agrees(engine, tiny(2))


def test_weights_that_were_dropped_are_replaced_by_others(engine: Engine) -> None:
    kept = engine.offload()
    engine.restore()
    dropped = engine.offload(drop=True)
    if dropped.host or kept.host:  # vLLM on a CPU stays as it is
        assert dropped.host < kept.host / 10
        with pytest.raises(RuntimeError, match="kept no weights"):
            engine.restore()
    engine.restore(tiny(1).state_dict(), 1)
    assert engine.version == 1
    _agrees(engine, tiny(1))


def test_after_a_restore_that_failed_dropped_weights_are_still_no_weights(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(engine, TorchEngine):
        pytest.skip("an engine that runs out of memory inside vLLM cannot be used any more")

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for owner, method in ((engine._offloader, "restore"), (engine, "_load")):  # noqa: SLF001
        engine.offload(drop=True)
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(owner, method, fail)
            engine.restore(tiny(1).state_dict(), 1)
        with pytest.raises(RuntimeError, match="offloaded or closed"):
            engine.generate(PROMPTS, GREEDY)
        with pytest.raises(RuntimeError, match="kept no weights"):
            engine.restore()
        engine.restore(tiny(1).state_dict(), 1)
        assert engine.version == 1
        _agrees(engine, tiny(1))


def test_new_weights_while_responses_are_sampled_are_an_error(engine: Engine) -> None:
    if not isinstance(engine, VllmEngine):
        pytest.skip("remembers nothing of prompts")
    with pytest.raises(RuntimeError, match="did not clear its prefix cache"):
        engine.generate(PROMPTS, GREEDY, progress=lambda _: engine.update_weights(tiny(0).state_dict(), 3))


def test_options_of_vllm_are_none_of_the_other_engine(tmp_path: Path, engine: Engine) -> None:
    folder = saved(tmp_path / "model", seed=0)
    with pytest.raises(InputError, match=r"engine torch: takes no engine_options, which are vLLM's: max_num_seqs is set"):
        make_engine("torch", folder, max_length=8, seed=0, threads=1, tensor_parallel=1, options={"max_num_seqs": 8})
    with pytest.raises(InputError, match="129 tokens are asked for, the model attends to 128"):
        make_engine("vllm", folder, max_length=8, seed=0, threads=1, tensor_parallel=1, options={"max_model_len": 129})


def test_workers_of_their_own_read_staged_weights_where_they_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with tensor parallelism: the weights are not staged a second time, and their memory is opened once."""
    if not isinstance(engine, VllmEngine):
        pytest.skip("one process reads them from memory")
    monkeypatch.setattr(engine, "_several", True)
    made = count_calls(monkeypatch, "engines.vllm_engine.WeightStage")
    opened = count_calls(monkeypatch, "residency.staging.OpenedStage")
    stage = WeightStage()
    for version in (1, 2):
        new = tiny(version).state_dict()
        stage.begin(WeightLayout.of(new), version)
        for offset, piece in pieces(new, WeightLayout.of(new)):
            stage.receive(version, offset, piece)
        engine.update_weights(stage.weights(), version)
        _agrees(engine, tiny(version))
    assert (len(made), len(opened)) == (0, 1)
    engine.update_weights(tiny(3).state_dict(), 3)  # of no stage: there is one for as long as they are loaded
    _agrees(engine, tiny(3))
    assert (len(made), len(opened)) == (1, 2)
    stage.close()


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """What a class of `runtime.engines` is made with from now on."""
    calls, true = list[object](), pkgutil.resolve_name(f"runtime.{name}")

    def make(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        return true(*arguments, **named)

    monkeypatch.setattr(f"runtime.{name}", make)
    return calls


def test_logprobs_are_of_the_distribution_sampled_from(engine: Engine) -> None:
    for response, prompt in zip(engine.generate(PROMPTS, RANDOM), PROMPTS, strict=True):
        expected = scores(tiny(0), prompt, response.token_ids, RANDOM.temperature)
        assert response.logprobs == pytest.approx(
            [float(expected[place, token]) for place, token in enumerate(response.token_ids)], abs=1e-3
        )


def test_top_p_leaves_the_likeliest_tokens_and_their_normalised_logprobs(engine: Engine) -> None:
    sampling = replace(RANDOM, top_p=0.5)
    for response, prompt in zip(engine.generate(PROMPTS * 4, sampling), PROMPTS * 4, strict=True):
        for place, (token, row) in enumerate(
            zip(response.token_ids, scores(tiny(0), prompt, response.token_ids, sampling.temperature).exp(), strict=True)
        ):
            likelier = float(row[row > row[token]].sum())
            assert likelier < 0.5
            kept, total = row.sort(descending=True).values, 0.0
            for probability in kept.tolist():
                total += probability
                if total >= 0.5:
                    break
            assert response.logprobs[place] == pytest.approx(float((row[token] / total).log()), abs=1e-3)


def test_samples_follow_the_distribution(engine: Engine) -> None:
    drawn = engine.generate([PROMPTS[1]] * 2000, Sampling(temperature=2.0, max_tokens=1, seed=3))
    counts = torch.bincount(torch.tensor([response.token_ids[0] for response in drawn]), minlength=96) / len(drawn)
    expected = scores(tiny(0), PROMPTS[1], (0,), 2.0)[0].exp()
    assert float((counts - expected).abs().sum()) / 2 < 0.12  # total variation; about 0.08 is due to 2,000 draws


def test_a_seed_gives_the_same_responses_and_another_one_others(engine: Engine) -> None:
    first = engine.generate(PROMPTS, RANDOM)
    assert engine.generate(PROMPTS, RANDOM) == first
    assert engine.generate(PROMPTS, replace(RANDOM, seed=12)) != first
    assert first[1].token_ids != first[3].token_ids  # the same prompt: two responses of its group


def test_worst_case_runs_to_the_last_token(engine: Engine) -> None:
    responses = engine.generate(PROMPTS * 8, replace(RANDOM, temperature=2.0, ignore_end=True))
    assert {len(response.token_ids) for response in responses} == {RANDOM.max_tokens}
    assert any(END in response.token_ids[:-1] for response in responses)
    natural = engine.generate(PROMPTS * 8, replace(RANDOM, temperature=2.0))
    assert any(len(response.token_ids) < RANDOM.max_tokens for response in natural)
    assert all(END not in response.token_ids[:-1] for response in natural)


def test_progress_counts_up_to_everything(engine: Engine) -> None:
    seen: list[SamplingProgress] = []
    responses = engine.generate(PROMPTS, RANDOM, progress=seen.append)
    assert seen[-1] == SamplingProgress(len(PROMPTS), len(PROMPTS), sum(len(response.token_ids) for response in responses))
    assert len(seen) >= max(len(response.token_ids) for response in responses)
    for before, after in pairwise(seen):
        assert before.finished <= after.finished
        assert before.tokens <= after.tokens


def test_stopped_responses_go_on_where_they_were(engine: Engine) -> None:
    whole = engine.generate(PROMPTS, GREEDY)
    steps: list[SamplingProgress] = []
    part = engine.generate(PROMPTS, GREEDY, progress=steps.append, stop=lambda: len(steps) == 7)
    left = [response for response in part if not response.finished]
    assert left
    assert all(0 < len(response.token_ids) < 20 and len(response.logprobs) == len(response.token_ids) for response in left)
    rest = engine.generate(PROMPTS, GREEDY, resume=left)
    for response, expected in zip(rest, whole, strict=True):
        assert response.token_ids == expected.token_ids
        assert response.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


def test_stopped_responses_go_on_with_new_weights_that_read_all_of_them_anew(engine: Engine) -> None:
    """What stands behind is what the new model says of the whole text: nothing that the old one has computed of it is used."""
    steps: list[SamplingProgress] = []
    part = engine.generate(PROMPTS, GREEDY, progress=steps.append, stop=lambda: len(steps) == 7)
    left = [response for response in part if not response.finished]
    engine.update_weights(tiny(1).state_dict(), 5)
    rest = engine.generate(PROMPTS, GREEDY, resume=left)
    assert left and len(rest) == len(PROMPTS)
    for old in left:
        new, done = rest[old.prompt], len(old.token_ids)
        tokens, logprobs = greedy(tiny(1), [*PROMPTS[old.prompt], *old.token_ids], GREEDY.max_tokens - done)
        assert new.token_ids == (*old.token_ids, *tokens) and new.versions == (0,) * done + (5,) * len(tokens)
        assert new.logprobs == pytest.approx((*old.logprobs, *logprobs), abs=1e-3)


def test_dropped_responses_come_back_unfinished_and_the_others_as_they_are(engine: Engine) -> None:
    prompts, sampling = PROMPTS * 6, replace(RANDOM, temperature=2.0, max_tokens=40)
    whole = engine.generate(prompts, sampling)
    lengths = [len(response.token_ids) for response in whole]
    first, last = min(lengths), sorted(range(len(prompts)), key=lengths.__getitem__)[-5:]
    told: list[int] = []

    def ended(responses: Sequence[Response]) -> list[int]:
        assert [response.token_ids for response in responses] == [whole[response.prompt].token_ids for response in responses]
        assert all(response.finished for response in responses)
        told.extend(response.prompt for response in responses)
        return last

    steps: list[SamplingProgress] = []
    responses = engine.generate(prompts, sampling, progress=steps.append, ended=ended)
    assert sorted([*told, *last]) == [*range(len(prompts))]
    for row, (response, expected) in enumerate(zip(responses, whole, strict=True)):
        assert response.finished == (row not in last)
        if row in last:
            expected = replace(expected, token_ids=expected.token_ids[:first])
        assert response.token_ids == expected.token_ids
    assert steps[-1].finished == len(prompts)
    assert engine.generate(prompts, sampling) == whole


def test_a_response_depends_on_its_stream_and_not_on_its_place(engine: Engine) -> None:
    whole = engine.generate(PROMPTS, RANDOM)
    some = engine.generate([PROMPTS[4], PROMPTS[1], PROMPTS[2]], RANDOM, streams=[4, 1, 2])
    assert [response.token_ids for response in some] == [whole[row].token_ids for row in (4, 1, 2)]


def test_a_callback_that_raises_leaves_the_engine_usable(engine: Engine) -> None:
    def fail(_: SamplingProgress) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.generate(PROMPTS, GREEDY, progress=fail)
    _agrees(engine, tiny(0))


def test_what_cannot_be_sampled_is_refused(engine: Engine) -> None:
    part = engine.generate([[4]], GREEDY, stop=lambda: True)
    assert not part[0].finished
    assert engine.generate([], GREEDY) == []
    for prompts, resume, words in (
        ([[4], []], (), "prompt 1: is empty"),
        ([[4] * 109], (), "prompt 0: 109 tokens and 20 of the response exceed the longest context, 128"),
        ([[4], [96]], (), "prompt 1: a token is outside of the vocabulary of 96"),
        ([[4]], (replace(part[0], prompt=-1),), "resume: prompt -1 is not there, or twice"),
        ([[4]], (replace(part[0], prompt=1),), "resume: prompt 1 is not there, or twice"),
        ([[4]], (replace(part[0], finished=True),), "resume: the response to prompt 0 is finished"),
    ):
        with pytest.raises(InputError, match=words):
            engine.generate(prompts, GREEDY, resume=resume)
    for sampling, words in (
        (replace(GREEDY, temperature=2.5), "temperature: 2.5 is neither 0 nor from 0.01 to 2"),
        (replace(GREEDY, temperature=1e-3), "temperature: 0.001 is neither 0 nor from 0.01 to 2"),
        (replace(GREEDY, top_p=0.0), "top_p: 0.0 is not above 0 and at most 1"),
        (replace(GREEDY, max_tokens=0), "max_tokens: 0 is less than 1"),
    ):
        with pytest.raises(InputError, match=words):
            engine.generate([[4]], sampling)


def test_weights_that_do_not_fit_change_nothing(engine: Engine) -> None:
    good = tiny(1).state_dict()
    missing = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    for weights, words in (
        (missing, "model.norm.weight: missing"),
        (good | {"model.extra": torch.zeros(1)}, "model.extra: not a weight of the model"),
        (
            good | {"model.norm.weight": torch.zeros(3)},
            r"model.norm.weight: the new weights have shape \(3,\), the model has \(128,\)",
        ),
    ):
        with pytest.raises(InputError, match=words):
            engine.update_weights(weights, 5)
        with pytest.raises(InputError, match=words):
            engine.restore(weights, 5)
    assert engine.version == 0
    _agrees(engine, tiny(0))


def test_a_model_directory_that_cannot_be_used_is_refused(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(InputError, match=r"config.json: No such file"):
        make_engine("torch", tmp_path, max_length=8, seed=0, threads=1, tensor_parallel=1)
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "config.json").write_text("{}")
    for text, words in (
        ("{}", "no weight_map in it"),
        ('{"weight_map": {"a": "none.safetensors"}}', "none.safetensors: No such file"),
    ):
        index.write_text(text)
        with pytest.raises(InputError, match=words):
            make_engine("torch", tmp_path, max_length=8, seed=0, threads=1, tensor_parallel=1)
    folder = saved(tmp_path / "odd", seed=0)
    config = json.loads((folder / "config.json").read_text())
    for name, value in (("max_position_embeddings", None), ("num_attention_heads", 0), ("num_hidden_layers", "two")):
        (folder / "config.json").write_text(json.dumps({**config, "head_dim": None, name: value}))
        with pytest.raises(InputError, match=r"config.json: layers, heads, sizes and positions must be counts"):
            make_engine("torch", folder, max_length=8, seed=0, threads=1, tensor_parallel=1)
    folder = saved(tmp_path / "model", seed=0)
    with pytest.raises(InputError, match="129 tokens are asked for, the model attends to 128"):
        make_engine("torch", folder, max_length=129, seed=0, threads=1, tensor_parallel=1)
    with pytest.raises(InputError, match="tensor_parallel: 99 GPUs are asked for, "):
        make_engine("torch", folder, max_length=8, seed=0, threads=1, tensor_parallel=99)
