"""Contexts of a framework's conversations, with messages that are written as several messages of a dialect."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foveal import SummaryRequest
from foveal.adapters import Conversations, Piece
from foveal.adapters.conversations import own_model
from foveal.core.log.events import Dialect
from foveal.errors import BadSetting, StoreUnusable


@dataclass(frozen=True)
class Exchange:
    """A message of an imaginary framework: a question and its answer."""

    question: str
    answer: str
    id: int = 0


class ExchangeFormat:
    dialect: Dialect = "openai_chat"

    def write(self, message: Exchange) -> Sequence[dict[str, Any]]:
        return [
            {"role": "user", "content": message.question},
            {"role": "assistant", "content": message.answer},
        ]

    def build(self, pieces: Sequence[Piece], original: Exchange | None) -> Sequence[Exchange]:
        texts = [piece.message["content"] for piece in pieces]
        return [Exchange(texts[0], "\n".join(texts[1:]), id=-1 if original is None else original.id)]


def exchanges(count: int, *, size: int = 1) -> list[Exchange]:
    return [Exchange(f"question {n}", f"answer {n} " * size, id=n + 1) for n in range(count)]


def conversations(**settings: Any) -> Conversations[Exchange]:
    return Conversations(ExchangeFormat(), "gpt-4.1", window=8_000, reserve=1_000, **settings)


def test_a_message_that_is_shown_whole_is_the_given_object() -> None:
    given = exchanges(5)
    fitted = conversations().get("a").fit(given)
    assert all(one is other for one, other in zip(given, fitted, strict=True))


def test_reduced_messages_keep_their_identity_and_the_given_list_is_unchanged() -> None:
    given = exchanges(60, size=120)
    before = list(given)
    found = conversations().get("a")
    for end in range(1, len(given) + 1):
        fitted = found.fit(given[:end])
    assert given == before
    assert fitted[-1] is given[-1]
    assert {message.id for message in fitted} <= {-1, *(message.id for message in given)}
    assert -1 in {message.id for message in fitted}


def test_each_conversation_has_a_context_of_its_own() -> None:
    both = conversations()
    one, two = exchanges(3), [Exchange("other", "reply")]
    assert both.get("a").fit(one) == one
    assert both.get("b").fit(two) == two
    assert both.get("a") is both.get("a")
    assert both.get("a").fit([*one, *two]) == [*one, *two]


def test_the_least_recently_used_context_is_forgotten() -> None:
    few = conversations(max_open=2)
    first = few.get("a")
    few.get("b")
    assert few.get("a") is first
    few.get("c")
    assert few.get("a") is first
    given = exchanges(3)
    assert few.get("b").fit(given) == given


def test_stored_conversations_continue_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "contexts.db")
    given = exchanges(60, size=120)
    with conversations(store=path) as before:
        for end in range(1, len(given) + 1):
            expected = before.get("a").fit(given[:end])
    with conversations(store=path) as after:
        assert after.get("a").fit(given) == expected


def test_a_stored_conversation_is_read_without_blocking_the_loop(tmp_path: Path) -> None:
    given = exchanges(3)

    async def check() -> None:
        with conversations(store=str(tmp_path / "contexts.db")) as stored:
            found = await stored.aget("a")
            assert await found.afit(given) == given
            assert await stored.aget("a") is found

    asyncio.run(check())


def test_two_programs_that_write_one_conversation_are_told(tmp_path: Path) -> None:
    path = str(tmp_path / "contexts.db")
    with conversations(store=path) as one, conversations(store=path) as other:
        one.get("a").fit(exchanges(3))
        other.get("a").fit(exchanges(4))
        with pytest.warns(UserWarning, match="another program writes it too"):
            one.get("a").fit([*exchanges(3), Exchange("more", "yes")])


def test_a_provider_s_overflow_is_answered_with_a_smaller_request() -> None:
    found = conversations().get("a")
    given = exchanges(20, size=120)
    sizes: list[int] = []

    def call(messages: list[Exchange]) -> str:
        sizes.append(sum(len(message.answer) for message in messages))
        if len(sizes) == 1:
            raise RuntimeError("This model's maximum context length is 4000 tokens.", {"status_code": 400})
        return "ok"

    class TooLong(Exception):
        status_code = 400
        code = "context_length_exceeded"

    def refusing(messages: list[Exchange]) -> str:
        try:
            return call(messages)
        except RuntimeError as error:
            raise TooLong(str(error)) from None

    assert found.send(given, refusing) == "ok"
    assert sizes[1] < sizes[0]


def test_an_unknown_summariser_is_refused() -> None:
    with pytest.raises(BadSetting, match='"own", a callable, or a list'):
        conversations(summarise="mine", has_own_model=True)
    with pytest.raises(BadSetting, match="'mine' is not allowed: a callable, or a list"):
        conversations(summarise="mine")


def test_own_is_refused_where_no_adapter_supplies_the_model() -> None:
    with pytest.raises(
        BadSetting, match=r"summarise = 'own' .* pass a function that calls your model, or None"
    ):
        conversations(summarise="own")


def test_own_is_allowed_where_an_adapter_supplies_the_model() -> None:
    found = conversations(summarise="own", has_own_model=True).get("a")
    asked = []

    def write(request: SummaryRequest) -> str:
        asked.append(request)
        return "Nothing of note."

    with own_model(write):
        for end in range(1, 61):
            found.fit(exchanges(end, size=120))
    assert asked


@pytest.mark.parametrize(
    "wrong",
    [
        {"windw": 3},
        {"window": "16k"},
        {"policy": "x"},
        {"model": 5},
        {"summarise": 4},
        {"max_open": 0},
        {"store": 5},
        {"prompt": 5},
        {"clock": 5},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_setting_is_refused_before_the_first_request(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting) as refused:
        Conversations(ExchangeFormat(), **wrong)
    assert {refused.value.field: refused.value.value} == wrong


def test_finding_a_conversation_never_creates_one() -> None:
    both = conversations()
    assert both.find("a") is None
    found = both.get("a")
    both.get("b")
    assert both.find("a") is found
    assert both.ids() == ["a", "b"]


def test_a_stored_conversation_is_found_without_its_model(tmp_path: Path) -> None:
    path = str(tmp_path / "contexts.db")
    with conversations(store=path) as before:
        before.get("a").fit(exchanges(3))
    with Conversations(ExchangeFormat(), store=path) as after:
        assert after.find("b") is None
        found = after.find("a")
        assert found is not None
        assert found.context.report().model == "gpt-4.1"
        assert after.get("a", model="gpt-4o") is found
        assert found.context.report().model == "gpt-4o"


def test_a_new_conversation_without_a_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for store in ("", str(tmp_path / "contexts.db")):
        with Conversations(ExchangeFormat(), store=store) as unnamed:
            with pytest.raises(BadSetting, match=r"no model is known yet.*find"):
                unnamed.get("a")
            assert unnamed.ids() == []


def test_a_closed_store_is_named_in_the_error(tmp_path: Path) -> None:
    stored = conversations(store=str(tmp_path / "contexts.db"))
    found = stored.get("a")
    stored.close()
    stored.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in (lambda: found.fit(exchanges(1)), lambda: stored.get("b"), lambda: stored.find("b")):
            with pytest.raises(StoreUnusable, match="the store of these conversations is closed"):
                call()


def test_usage_that_cannot_be_read_is_a_warning() -> None:
    found = conversations().get("a")
    found.fit(exchanges(1))
    with pytest.warns(UserWarning, match="usage"):
        found.observe({"tokens?": 5})


def test_a_configured_window_stays_when_the_model_changes() -> None:
    both = Conversations(ExchangeFormat(), window=8_000, reserve=1_000)
    given = exchanges(60, size=120)
    for end in range(1, len(given) + 1):
        fitted = both.get("a", model=("gpt-4.1", "gpt-4o")[end % 2]).fit(given[:end])
    assert sum(len(message.answer) for message in fitted) < 8_000 * 4


def test_requests_of_one_conversation_at_the_same_time_are_stored_once(tmp_path: Path) -> None:
    given = exchanges(40)
    with conversations(store=str(tmp_path / "contexts.db")) as stored, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stored.get("a")
        with ThreadPoolExecutor(4) as threads:
            ends = (end for end in range(1, len(given) + 1) for _ in range(2))
            assert len(list(threads.map(lambda end: found.fit(given[:end]), ends))) == 2 * len(given)
