"""Tokens of commands: one of each user, kept over restarts, and made anew where it has been revoked."""

from __future__ import annotations

from pathlib import Path

from runtime.service.tokens import COMMAND_TOKENS, CommandTokens, Holder, Right, Tokens


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
