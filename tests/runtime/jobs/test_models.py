"""The tiny model: the same bytes for the same seed, readable by transformers, and born with a heavy tail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.engines.pretrained import load_tokenizer
from runtime.jobs import models
from runtime.jobs.file import load_jobs
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import END, KINDS, LENGTHS, VOCABULARY_SIZE, model_directory, tiny_config, token_of
from runtime.training.memory import tiny_size

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = ModelSpec(hidden_size=64, layers=2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path))
    return tmp_path / "models"


def test_the_same_model_and_seed_are_the_same_bytes_made_once(cache: Path) -> None:
    first = model_directory(SMALL, 1)
    weights = (first / "model.safetensors").read_bytes()
    made = (first / "model.safetensors").stat().st_ino
    assert model_directory(SMALL, 1) == first
    assert (first / "model.safetensors").stat().st_ino == made
    first.rename(cache / "aside")
    assert (model_directory(SMALL, 1) / "model.safetensors").read_bytes() == weights
    assert (model_directory(SMALL, 2) / "model.safetensors").read_bytes() != weights


def test_a_model_that_could_not_be_finished_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("disk full")

    monkeypatch.setattr(models, "_make_tokenizer", fail)
    with pytest.raises(OSError, match="disk full"):
        model_directory(SMALL, 1)
    assert [*cache.iterdir()] == []


def test_transformers_reads_it_with_untied_embeddings_and_half_a_million_to_three_million_parameters(cache: Path) -> None:
    model = transformers.Qwen2ForCausalLM.from_pretrained(model_directory(ModelSpec(), 0), local_files_only=True)
    assert model.num_parameters() == tiny_size(tiny_config(ModelSpec())).parameters
    assert not model.config.tie_word_embeddings
    assert 0.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 3e6
    assert model.config.eos_token_id == END


def test_text_goes_through_the_tokenizer_and_back(cache: Path) -> None:
    tokenizer = load_tokenizer(model_directory(SMALL, 0))
    text = "12 + 3 = abc\nA?  <é> don't"
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text.encode())
    assert tokens[:3] == [token_of("1"), token_of("2"), token_of(" ")]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (END, 0, VOCABULARY_SIZE)


def test_a_newborn_ends_its_responses_after_lengths_that_depend_on_the_capital(cache: Path) -> None:
    directory = model_directory(ModelSpec(), 0)
    model = transformers.Qwen2ForCausalLM.from_pretrained(directory, local_files_only=True)
    tokenizer = load_tokenizer(directory)
    for capital, letters in KINDS.items():
        own = [token_of(letter) for letter in letters]
        text = f"123{capital}{letters * 8}"
        with torch.no_grad():
            chances = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, 3:].softmax(-1)
        assert chances[:, own].sum(-1).min() > 0.8
        assert chances[1:, END].mean().item() == pytest.approx(1 / LENGTHS[capital], rel=0.4)


def test_a_directory_of_the_users_is_taken_if_it_is_complete(cache: Path, tmp_path: Path) -> None:
    tiny = model_directory(SMALL, 0)
    assert model_directory(ModelSpec(name=tiny.name), 0, tiny.parent) == tiny
    own = tmp_path / "own"
    steps = (("config.json", "no weights as"), ("model.safetensors", "no tokenizer"), ("tokenizer_config.json", "no tokenizer;"))
    for name, problem in steps:
        own.mkdir(exist_ok=True)
        (own / name).write_bytes((tiny / name).read_bytes())
        with pytest.raises(InputError, match=problem):
            model_directory(ModelSpec(name=str(own)), 0)


def test_a_model_that_a_job_cannot_use_is_refused_before_anything_starts(cache: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(model_directory(SMALL, 0), tmp_path / "own"))
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    task = {"name": "jsonl", "file": "data.jsonl"}
    file = tmp_path / "jobs.json"

    def problem(**job: object) -> str:
        given = {"id": "a", "slo": 2, "iterations": 1, "model": "own", "task": task} | job
        file.write_text(json.dumps({"version": 1, "jobs": [given]}))
        with pytest.raises(InputError) as refused:
            load_jobs(file)
        return str(refused.value).removeprefix(f"{file}: jobs[0].")

    assert problem(task=task | {"chat": True}) == "task: messages need a chat template; own has none"
    evaluation = {"file": "talk.jsonl"}
    (tmp_path / "talk.jsonl").write_text('{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}')
    assert problem(evaluation=evaluation) == "evaluation: messages need a chat template; own has none"
    asked = problem(algorithm={"max_prompt_tokens": 4000, "max_tokens": 97})
    assert asked == "algorithm: max_prompt_tokens and max_tokens are 4097 together; the model attends to 4096"
    (own / "tokenizer.json").unlink()
    assert problem().startswith(f"model: {own}: holds no tokenizer; a Hugging Face directory of a model has a tokenizer")


def test_a_cache_that_cannot_be_written_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="ROLLMUX_CACHE"):
        model_directory(SMALL, 0)
    for name in ("ROLLMUX_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user whom the system does not know
    with pytest.raises(InputError, match="no home folder is known; ROLLMUX_CACHE names a folder"):
        model_directory(SMALL, 0)
