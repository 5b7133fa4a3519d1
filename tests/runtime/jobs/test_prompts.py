"""Prompts of a JSONL file: fields by name, conversations through a chat template, and those that are too long are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollmux_env.errors import InputError
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.jsonl import read_examples
from runtime.jobs.making import make_task
from runtime.jobs.models import has_chat_template, prompt_tokens
from runtime.jobs.tasks import TaskExample, score

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = ["<user>", "<system>", "<assistant>", "<end>", "be", "brief", "one", "two", "[UNK]"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", chat_template=TEMPLATE)  # type: ignore[no-untyped-call]


def examples(folder: Path, *lines: object, **keys: object) -> list[TaskExample]:
    (folder / "data.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    keys = {"reward": "own:function"} | keys  # which may do without an answer
    return read_examples(TaskSpec.model_validate({"name": "jsonl", "file": "data.jsonl", **keys}), str(folder))


def words(tokenizer: PreTrainedTokenizerFast, example: TaskExample) -> str:
    return " ".join(WORDS[token] for token in prompt_tokens(tokenizer, example))


def test_fields_have_the_names_that_the_data_has(tmp_path: Path) -> None:
    (one,) = examples(tmp_path, {"question": "one", "answer": 3, "level": "easy"}, prompt="question")
    assert (one.prompt, one.answer, one.messages, one.record["level"]) == ("one", "3", (), "easy")
    assert one.where == f"{tmp_path}/data.jsonl: line 1"


def test_text_is_as_it_is_or_a_message_of_a_user(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    line = {"prompt": "one two"}
    assert words(tokenizer, *examples(tmp_path, line)) == "one two"
    assert words(tokenizer, *examples(tmp_path, line, chat=True)) == "<user> one two <end> <assistant>"
    shown = words(tokenizer, *examples(tmp_path, line, system="be brief"))
    assert shown == "<system> be brief <end> <user> one two <end> <assistant>"


def test_a_conversation_goes_through_the_chat_template(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "be"}]
    (one,) = examples(tmp_path, {"prompt": talk, "answer": "x"})
    assert words(tokenizer, one) == "<user> one <end> <assistant> two <end> <user> be <end> <assistant>"
    assert one.prompt == "be"


def test_a_template_that_refuses_is_one_line(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must\nalternate') }}"
    with pytest.raises(InputError, match=r"the chat template of the model fails: TemplateError: roles must.+alternate"):
        prompt_tokens(tokenizer, *examples(tmp_path, {"prompt": "one"}, chat=True))


def test_a_folder_has_a_template_or_not(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    assert not has_chat_template(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert has_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert has_chat_template(tmp_path)


def test_a_built_in_verifier_compares_with_the_answer(tmp_path: Path) -> None:
    examples(tmp_path, {"question": "how many?", "answer": "so many\n#### 1,024"}, prompt="question")
    spec = TaskSpec(name="jsonl", file="data.jsonl", prompt="question", reward="number")
    task = make_task(spec, 0, str(tmp_path))
    (one,) = task.prompts(1, 0)
    assert score(task, one, "it is \\boxed{1024}") == 1.0 and score(task, one, "1025") == 0.0


def test_fields_may_have_any_name_and_messages_are_one_printable_line(tmp_path: Path) -> None:
    names = {"prompt": "the\nprompt", "answer": "the\x1b[31m answer", "reward": "number"}
    (line,) = examples(tmp_path, {"the\nprompt": "1+1", "the\x1b[31m answer": "2"}, **names)
    assert (line.prompt, line.answer) == ("1+1", "2")
    lines: tuple[dict[str, object], ...] = (
        {},
        {"the\nprompt": 1},
        {"the\nprompt": " "},
        {"the\nprompt": []},
        {"the\nprompt": "1+1"},
        {"the\nprompt": "1", "the\x1b[31m answer": "none"},
    )
    for wrong in lines:
        with pytest.raises(InputError) as error:
            examples(tmp_path, wrong, **names)
        assert str(error.value).isprintable()
