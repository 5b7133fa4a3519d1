"""Tokens of a service's users: what they allow, that they are not kept, and that a running service knows of changes at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rollmux_env.errors import InputError
from rollmux_env.fields import UserName
from runtime.service.tokens import COMMAND_TOKENS, TOKENS, CommandTokens, Holder, Right, Tokens
from tests.conftest import Command


def test_a_token_is_its_users_and_the_file_holds_only_its_hash_for_its_owner_alone(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    bearer = tokens.make("ann", Right.ATTACH)
    assert tokens.holder(bearer) == Holder("ann", Right.ATTACH)
    assert bearer.startswith("rollmux_") and len(bearer) == len("rollmux_") + 43
    file = tmp_path / TOKENS
    assert bearer.removeprefix("rollmux_") not in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    assert tokens.holder("") is None and tokens.holder(bearer[:-1]) is None and tokens.holder("\udcff") is None
    assert tokens.holder(tokens.list()[0].sha256) is None  # who reads the file has no token


def test_rights_are_ordered() -> None:
    assert Right.LOOK < Right.ATTACH < Right.OPERATE


def test_a_running_service_knows_what_another_process_makes_and_revokes(tmp_path: Path) -> None:
    serving, command = Tokens(tmp_path), Tokens(tmp_path)
    assert serving.holder("rollmux_none") is None
    ann, bob = command.make("ann", Right.LOOK), command.make("bob", Right.OPERATE)
    assert serving.holder(ann) == ("ann", Right.LOOK, 0) and serving.holder(bob) == ("bob", Right.OPERATE, 0)
    assert [token.user for token in command.list()] == ["ann", "bob"]
    assert command.revoke(command.list()[0].id).user == "ann"
    assert serving.holder(ann) is None and serving.holder(bob) is not None
    with pytest.raises(InputError, match="token 123: there is none"):
        command.revoke("123")


def test_the_service_has_one_token_of_its_own(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    old = tokens.make("", Right.OPERATE)
    ann = tokens.make("ann", Right.LOOK)
    new = tokens.make("", Right.OPERATE)
    assert tokens.holder(old) is None and tokens.holder(new) == ("", Right.OPERATE, 0) and tokens.holder(ann) is not None


def test_a_damaged_file_lets_nobody_in_and_is_not_written_over(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    bearer = tokens.make("ann", Right.OPERATE)
    whole = (tmp_path / TOKENS).read_text()
    (tmp_path / TOKENS).write_text(whole[:-20])
    assert tokens.holder(bearer) is None
    with pytest.raises(InputError, match=r"tokens\.json: cannot be read"):
        tokens.make("bob", Right.LOOK)
    (tmp_path / TOKENS).write_text(whole)
    assert tokens.holder(bearer) is not None
    (tmp_path / TOKENS).unlink()
    assert tokens.holder(bearer) is None


def test_tokens_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        bearers = [*pool.map(lambda number: Tokens(tmp_path).make(f"user-{number}", Right.LOOK), range(16))]
    assert {holder.user for bearer in bearers if (holder := Tokens(tmp_path).holder(bearer))} == {f"user-{n}" for n in range(16)}


@pytest.mark.parametrize("user", ["a b", "x" * 65, "a\n", "ä"])
def test_a_name_that_can_be_none_is_refused(user: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a user's name may hold"):
        Tokens(tmp_path).make(user, Right.LOOK)
    assert not (tmp_path / TOKENS).exists()


def test_each_user_that_a_job_may_have_may_have_a_token(tmp_path: Path) -> None:
    user = TypeAdapter(UserName).validate_python("ann+rl@example.org")
    assert Tokens(tmp_path).holder(Tokens(tmp_path).make(user, Right.ATTACH)) == Holder(user, Right.ATTACH)
    assert Tokens(tmp_path).holder(CommandTokens(tmp_path).of(user)) == Holder(user, Right.ATTACH)


def test_the_commands_make_list_and_revoke(command: Command, tmp_path: Path) -> None:
    at = ("--at", str(tmp_path))
    status, out, err = command("token", "make", "ann", "--right", "attach", "--priority", "4", *at)
    assert (status, err) == (0, "") and Tokens(tmp_path).holder(out.strip()) == ("ann", Right.ATTACH, 4)
    status, listed, _ = command("token", "list", *at)
    token_id = json.loads((tmp_path / TOKENS).read_text())[0]["id"]
    assert status == 0 and all(word in listed for word in (token_id, "ann", "attach")) and out.strip() not in listed
    assert command("token", "revoke", token_id, *at) == (0, f"revoked: {token_id}, attach of ann\n", "")
    assert Tokens(tmp_path).holder(out.strip()) is None
    for arguments, problem in (
        (("revoke", token_id), "there is none"),
        (("make", "ann", "--right", "root"), "'root' is not one of"),
        (("make", "", "--right", "look"), "a user's name is empty"),
    ):
        status, out, err = command("token", *arguments, *at)
        assert (status, out) == (2, "") and problem in err and err.count("\n") == 1
    status, _, err = command("token", "list", "--at", str(tmp_path / "other"))
    assert status == 2 and "there is no such folder" in err


def test_a_user_has_one_token_for_commands_however_often_a_service_starts(tmp_path: Path) -> None:
    first = CommandTokens(tmp_path)
    ann, ben = first.of("ann"), first.of("ben")
    again = CommandTokens(tmp_path)
    assert (again.of("ann"), again.of("ben"), first.of("ann")) == (ann, ben, ann)
    tokens = Tokens(tmp_path)
    assert [token.user for token in tokens.list()] == ["ann", "ben"]
    assert tokens.holder(ann) == Holder("ann", Right.ATTACH)
    assert (tmp_path / COMMAND_TOKENS).stat().st_mode & 0o777 == 0o600


def test_a_revoked_one_stays_revoked_and_another_one_takes_its_place(tmp_path: Path) -> None:
    tokens, running = Tokens(tmp_path), CommandTokens(tmp_path)
    leaked = running.of("ann")
    tokens.revoke(tokens.list()[0].id)
    fresh = running.of("ann")
    assert tokens.holder(leaked) is None and tokens.holder(fresh) == Holder("ann", Right.ATTACH)
    assert CommandTokens(tmp_path).of("ann") == fresh


def test_a_damaged_file_costs_new_tokens_and_nothing_else(tmp_path: Path) -> None:
    before = CommandTokens(tmp_path).of("ann")
    (tmp_path / COMMAND_TOKENS).write_text("{")
    fresh = CommandTokens(tmp_path).of("ann")
    assert fresh != before and CommandTokens(tmp_path).of("ann") == fresh
