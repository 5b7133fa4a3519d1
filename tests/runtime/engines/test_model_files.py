"""A folder that trainer and engines would read as two models is refused, and so is one that they would have to run code of."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollmux_env.errors import InputError
from runtime.engines.model_files import OUTPUT, read_model_files
from runtime.engines.pretrained import load_model, load_tokenizer
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import END as TINY_END
from runtime.jobs.models import model_directory
from tests.runtime.engines.models import END, saved

ROOT = Path(__file__).parents[3]
SHIPPED = ("clients", "examples", "policies", "rollmux_env", "runtime", "trainers")
EMBEDDING = "model.embed_tokens.weight"


def change(folder: Path, file: str = "config.json", drop: tuple[str, ...] = (), **values: Any) -> None:
    """Set and drop keys of a JSON file."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (content | values).items() if key not in drop}))


def rewrite(folder: Path, drop: tuple[str, ...] = (), **weights: torch.Tensor) -> None:
    """Set and drop weights of the only file of weights."""
    path = folder / "model.safetensors"
    stored = load_file(path) | {name.replace("__", "."): tensor for name, tensor in weights.items()}
    save_file({name: tensor for name, tensor in stored.items() if name not in drop}, path, {"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        read_model_files(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{folder}")


def test_a_tied_configuration_beside_another_output_matrix_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, seed=0)
    change(tmp_path, tie_word_embeddings=True)
    said = f"/config.json: tie_word_embeddings is true, but {OUTPUT} differs from {EMBEDDING} in the weights"
    assert refusal(tmp_path) == said
    same = load_file(tmp_path / "model.safetensors")[EMBEDDING].clone()
    same[-1, -1] += 1
    rewrite(tmp_path, lm_head__weight=same)
    assert refusal(tmp_path) == said
    rewrite(tmp_path, lm_head__weight=same[:, :-1].contiguous())
    assert refusal(tmp_path) == said
    same = load_file(tmp_path / "model.safetensors")[EMBEDDING].clone()
    rewrite(tmp_path, lm_head__weight=same)
    files = read_model_files(tmp_path)
    assert files.tied and OUTPUT not in files.shapes


def test_an_untied_configuration_without_an_output_matrix_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, seed=0, tied=True)
    assert read_model_files(tmp_path).tied
    change(tmp_path, tie_word_embeddings=False)
    assert refusal(tmp_path) == f"/config.json: tie_word_embeddings is false, but the weights hold no {OUTPUT}"
    change(tmp_path, drop=("tie_word_embeddings",))  # as the class of Qwen2 has it
    assert refusal(tmp_path) == f"/config.json: tie_word_embeddings is false, but the weights hold no {OUTPUT}"
    change(tmp_path, model_type="gemma")
    assert read_model_files(tmp_path).tied


def test_a_nested_configuration_is_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path, seed=0)
    change(tmp_path, text_config={"num_hidden_layers": 2})
    assert refusal(tmp_path).startswith("/config.json: text_config: a model whose configuration is nested is not supported")


def test_responses_end_with_the_tokens_of_all_who_name_one(tmp_path: Path) -> None:
    saved(tmp_path, seed=0)
    change(tmp_path, eos_token_id=[5, 6])
    change(tmp_path, "generation_config.json", eos_token_id=[END, 6])
    assert read_model_files(tmp_path).end_ids == (END, 5, 6)
    for file in model_directory(ModelSpec(hidden_size=64, layers=1), 0).glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path, eos_token_id=7)
    change(tmp_path, "generation_config.json", drop=("eos_token_id",))
    assert read_model_files(tmp_path).end_ids == (TINY_END, 7)
    change(tmp_path, eos_token_id=None)
    assert read_model_files(tmp_path).end_ids == (TINY_END,)
    change(tmp_path, "tokenizer_config.json", drop=("eos_token",))
    assert refusal(tmp_path).startswith(": no token of the model ends a response")
    change(tmp_path, eos_token_id="<end>")
    assert refusal(tmp_path) == "/config.json: eos_token_id must be a token id or a list of them, not '<end>'"


def test_a_weight_that_would_be_drawn_at_random_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, seed=0)
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(tmp_path, drop=(name,))
    with pytest.raises(InputError, match=f"holds no {name}, a weight of Qwen2ForCausalLM$"):
        load_model(tmp_path, torch.float32)


@pytest.mark.parametrize("load", [load_tokenizer, lambda folder: load_model(folder, torch.float32)])
def test_code_of_a_folder_is_not_run_and_nobody_is_asked(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, seed=0)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    change(tmp_path, model_type="of_their_own", auto_map=own)
    change(tmp_path, "tokenizer_config.json", tokenizer_class="Own", auto_map=own)
    with pytest.raises(InputError, match="transformers cannot load it: ") as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value) and not (tmp_path / "ran").exists()


def test_no_shipped_load_runs_code_of_a_folder_or_reads_pickles() -> None:
    loads = []
    for path in (path for folder in SHIPPED for path in ROOT.joinpath(folder).rglob("*.py")):
        if ".from_pretrained(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained":
                words = {word.arg: ast.unparse(word.value) for word in node.keywords}
                has_weights = "Model" in ast.unparse(node.func.value)
                loads.append((path.name, node.lineno))
                assert words.get("trust_remote_code") == "False", loads[-1]
                assert not has_weights or words.get("use_safetensors") == "True", loads[-1]
    assert len(loads) >= 6
