"""Conversations of a framework that names none: found by all of their messages, or begun anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from foveal.adapters import Conversations, NativeContext, Piece
from foveal.core.log.events import Dialect
from foveal.errors import BadSetting, ConversationIdMissing

HOW = "pass `session`"


class ChatFormat:
    dialect: Dialect = "openai_chat"

    def write(self, message: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [message]

    def build(self, pieces: Sequence[Piece], original: dict[str, Any] | None) -> Sequence[dict[str, Any]]:
        return [piece.message for piece in pieces]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Users:
    """Users of one application that names no conversation."""

    def __init__(self, **settings: Any) -> None:
        self.conversations = Conversations(ChatFormat(), "gpt-4.1", window=16_000, **settings)

    def ask(self, said: list[dict[str, Any]], **named: str) -> tuple[str, NativeContext[dict[str, Any]]]:
        id = self.conversations.recognise(said, how=HOW, **named)
        found = self.conversations.get(id)
        found.fit(said)
        return id, found


@pytest.mark.parametrize("pair", range(50))
def test_two_users_who_begin_and_go_on_alike_stay_apart(pair: int) -> None:
    users = Users()
    said = {name: [user("Hi")] for name in ("ANN", "BOB")}
    for turn in range(4):
        ids = {}
        for name, other in (("ANN", "BOB"), ("BOB", "ANN")):
            ids[name], found = users.ask(said[name])
            answers = [
                found.recall("recall_search", {"query": text}) for text in ("password", "continue", other)
            ]
            assert f"SECRET-{other}" not in "".join(answers)
            assert f"SECRET-{other}".encode() not in found.context.save()
            assert f"SECRET-{other}" not in str(found.context.report())
        assert ids["ANN"] != ids["BOB"]
        for name in said:
            said[name] += [
                answer("Fine."),
                user(f"my password is SECRET-{name}-{pair}" if turn == 0 else "continue"),
            ]


def test_a_conversation_that_no_other_resembles_is_continued() -> None:
    users, said, ids = Users(), [user("Why is CI red?")], set()
    for turn in range(5):
        ids.add(users.ask(said)[0])
        said = [*said, answer(f"Answer {turn}."), user(f"Question {turn}")]
    assert len(ids) == 1


def test_marks_and_a_changed_system_text_do_not_begin_another_conversation() -> None:
    users, said = Users(), [user("Why is CI red?")]
    first, _ = users.ask([{"role": "system", "content": "It is 9:00."}, *said])
    marked = [{"type": "text", "text": "Why is CI red?", "cache_control": {"type": "ephemeral"}}]
    later = [{"role": "user", "content": marked}, answer("A test fails."), user("Which?")]
    assert users.ask([{"role": "system", "content": "It is 9:05."}, *later])[0] == first


def test_the_same_history_from_two_users_begins_a_conversation_for_each() -> None:
    users = Users()
    shared = [user("Hi"), answer("Hello."), user("continue")]
    first, second = users.ask(shared)[0], users.ask(shared)[0]
    third = users.ask([*shared, answer("Fine."), user("my password is SECRET")])[0]
    assert len({first, second, third}) == 3


def test_all_requests_of_a_run_are_one_conversation() -> None:
    users = Users()
    said = [user("Hi")]
    ids = {users.ask(said, run="run 1")[0], users.ask(said, run="run 1")[0]}
    ids.add(users.ask([user("Hi, edited"), answer("Hello."), user("continue")], run="run 1")[0])
    assert len(ids) == 1
    assert users.ask(said, run="run 2")[0] not in ids


def test_scopes_have_conversations_of_their_own() -> None:
    users, said = Users(), [user("Hi")]
    first = users.ask(said, scope="ann/")[0]
    later = [*said, answer("Hello."), user("continue")]
    assert first.startswith("ann/")
    assert users.ask(later, scope="bob/")[0] != first
    assert users.ask(later, scope="ann/")[0] == first


def test_a_recall_tool_finds_the_conversation_of_its_call_and_no_other() -> None:
    users = Users()
    said = [user("The zebra is called Ann.")]
    _, found = users.ask(said)
    called = [*said, answer("I look it up.")]
    assert users.conversations.recognised(called) is found
    assert users.conversations.recognised(said) is found
    assert users.conversations.recognised([user("Hi")]) is None
    users.ask(said)  # another user says the same
    assert users.conversations.recognised(called) is None


def test_nothing_is_found_by_its_messages_after_a_restart(tmp_path: Any) -> None:
    store = str(tmp_path / "contexts.db")
    before, after = Users(store=store), Users(store=store)
    before.ask([user("Hi"), answer("Hello."), user("my password is SECRET-ANN")])
    _, found = after.ask([user("Hi"), answer("Hello."), user("my password is SECRET-BOB")])
    assert "SECRET-ANN" not in found.recall("recall_search", {"query": "password"})
    for users in (before, after):
        users.conversations.close()


def test_with_strict_ids_a_request_without_an_id_says_how_to_pass_one() -> None:
    users = Users(strict_ids=True)
    with pytest.raises(ConversationIdMissing, match="pass `session`"):
        users.ask([user("Hi")])
    assert users.conversations.get("one").fit([user("Hi")]) == [user("Hi")]


def test_strict_ids_is_true_or_false() -> None:
    with pytest.raises(BadSetting, match="strict_ids"):
        Users(strict_ids="yes")


def test_messages_that_json_cannot_hold_are_recognised_too() -> None:
    users = Users()
    odd = {"role": "user", "content": "a lone \ud800 surrogate"}
    first = users.conversations.recognise([odd], how=HOW)
    assert users.conversations.recognise([odd, answer("Yes."), user("And?")], how=HOW) == first


def test_a_request_that_failed_and_is_sent_again_continues_its_conversation() -> None:
    users, said = Users(), [user("Hi"), answer("Hello."), user("continue")]
    first, other = users.ask(said)[0], users.ask(said)[0]
    users.conversations.expect_retry(first)
    assert users.ask(said)[0] == first
    assert users.ask(said)[0] not in (first, other)


def test_an_empty_id_is_no_conversation_that_all_share() -> None:
    with pytest.raises(BadSetting, match="not empty"):
        Users().conversations.get("")
