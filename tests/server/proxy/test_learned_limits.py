"""Limits that upstreams state when they refuse a request: learned once, and shared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest

from foveal.core.log import Noted, Overflowed
from foveal.core.models.model import model
from foveal.core.wire.overflow_errors import recognise_overflow, refused_output
from foveal.server.proxy.upstreams import (
    LIMITS_REFRESH_S,
    MAX_LIMIT_AGE_S,
    LearnedLimits,
    LimitedModel,
    UpstreamTarget,
    limiting_features,
)
from support.gated_provider import run
from support.provider_stand_in import StandIn
from support.service_databases import open_database
from support.upstream import Piece, ProxyServer, RawUpstream, ReceivedRequest, answer, until

Json = dict[str, Any]
KEY = "sk-client-0123456789abcdef"
CLAUDE = LimitedModel("https://api.anthropic.com/v1", "claude-sonnet-4-6")
REFUSED_OUTPUTS = {
    "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-x": 64_000,
    "max_tokens is too large: 128000. This model supports at most 16384 completion tokens, whereas you "
    "provided 128000.": 16_384,
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]": 8_192,
    "Range of max_tokens should be [1, 8192]": 8_192,
    "`max_completion_tokens` must be less than or equal to `32768`, the maximum value": 32_768,
    "The maximum tokens you requested exceeds the model limit of 4096.": 4_096,
}


@pytest.mark.parametrize("text", REFUSED_OUTPUTS)
def test_a_stated_limit_for_the_answer_is_read_and_is_no_overflow(text: str) -> None:
    error = {"status_code": 400, "body": {"error": {"type": "invalid_request_error", "message": text}}}
    assert refused_output(error) == REFUSED_OUTPUTS[text]
    assert recognise_overflow(error) is None


@pytest.mark.parametrize(
    "text",
    [
        "input length and `max_tokens` exceed context limit: 190000 + 64000 > 200000, decrease input length",
        "`max_tokens` must be greater than `thinking.budget_tokens`",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "max_tokens: Input should be greater than or equal to 1",
    ],
)
def test_other_refusals_state_no_limit_for_the_answer(text: str) -> None:
    assert refused_output({"status_code": 400, "body": {"error": {"message": text}}}) == 0


# ── The table ──────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@run
async def test_a_window_counts_on_every_machine_when_two_sessions_were_told_it(place: Path | str) -> None:
    clock, known = Clock(), model("claude-sonnet-4-6")
    async with open_database(place) as one, open_database(place) as other:
        here, there = LearnedLimits(one, clock=clock), LearnedLimits(other, clock=clock)
        await there.refresh()
        await here.note(CLAUDE, "window", 100_000, session="a/1")
        await here.note(CLAUDE, "window", 100_000, session="a/1")
        assert here.limited(known, CLAUDE) == known  # one session may have been routed oddly
        await here.note(CLAUDE, "window", 100_000, session="a/2")
        limited = here.limited(known, CLAUDE)
        assert (limited.window, limited.sources["window"]) == (100_000, "learned from a refused request")
        await there.refresh()
        assert there.limited(known, CLAUDE) == known  # it has read the table a moment ago
        clock.now += LIMITS_REFRESH_S
        await there.refresh()
        assert there.limited(known, CLAUDE).window == 100_000
        assert there.limited(known, CLAUDE._replace(features="context-1m-2025-08-07")) == known
        assert there.limited(known, CLAUDE._replace(upstream="http://127.0.0.1:8000/v1")) == known


@run
async def test_an_odd_window_does_not_replace_one_that_counts(place: Path | str) -> None:
    clock, known = Clock(), model("claude-sonnet-4-6")
    async with open_database(place) as database:
        limits = LearnedLimits(database, clock=clock)
        for session in ("a", "b"):
            await limits.note(CLAUDE, "window", 100_000, session=session)
        clock.now += 1
        await limits.note(CLAUDE, "window", 2_762, session="c")
        assert limits.limited(known, CLAUDE).window == 100_000
        clock.now += MAX_LIMIT_AGE_S
        await limits.refresh()
        assert limits.limited(known, CLAUDE) == known  # the provider may have raised it


@run
async def test_a_limit_for_the_answer_counts_at_once(place: Path | str) -> None:
    async with open_database(place) as database:
        limits = LearnedLimits(database, clock=Clock())
        assert limits.max_output(CLAUDE) == 0
        await limits.note(CLAUDE, "output", 64_000, session="a")
        assert limits.max_output(CLAUDE) == 64_000


@run
async def test_limits_that_cannot_be_stored_are_no_error(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        limits = LearnedLimits(database, clock=Clock())
        await limits.note(CLAUDE, "output", 64_000, session="a")
    await limits.note(CLAUDE, "output", 32_000, session="a")  # the database is closed
    limits = LearnedLimits(database, clock=Clock())
    await limits.refresh()
    assert limits.max_output(CLAUDE) == 0


def test_an_upstream_is_known_by_its_address_without_credentials() -> None:
    beta = [("Anthropic-Beta", "fine-grained-x, output-128k-2025-02-19"), ("anthropic-beta", "context-1m-x")]
    target = UpstreamTarget("https://me:secret@gateway.example/team/v1/messages?beta=true", beta)
    features = "context-1m-x,output-128k-2025-02-19"
    assert target.limited("m") == LimitedModel("https://gateway.example/team/v1", "m", features)
    assert limiting_features([]) == ""


# ── Through the server ─────────────────────────────────────────────────────────────────────────────────


def allowing(limit: int) -> Any:
    """Return the script of an upstream that refuses a larger `max_tokens` as Anthropic does."""

    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        body = json.loads(seen.body)
        asked, thinking = body["max_tokens"], body.get("thinking", {}).get("budget_tokens", 0)
        problem = f"max_tokens: {asked} > {limit}, which is the maximum allowed number of output tokens for m"
        if asked <= limit:
            problem = (
                "`max_tokens` must be greater than `thinking.budget_tokens`" if asked <= thinking else ""
            )
        if problem:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
            yield answer(json.dumps(error).encode(), status="400 Bad Request")
            return
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "Done."}], "usage": {"input_tokens": 9, "output_tokens": 2},
        }  # fmt: skip
        yield answer(json.dumps(message).encode())

    return script


def test_max_tokens_is_refused_once_and_then_limited(tmp_path: Path) -> None:
    with (
        RawUpstream(allowing(64_000)) as raw,
        ProxyServer(tmp_path, anthropic=raw.anthropic) as proxy,
        anthropic.Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as client,
    ):
        create = client.messages.with_raw_response.create
        for name in ("first", "second"):
            reply = create(
                model="claude-sonnet-4-6",
                max_tokens=128_000,
                thinking={"type": "enabled", "budget_tokens": 127_999},
                messages=cast(Any, [{"role": "user", "content": f"The {name} question."}]),
                extra_headers={"x-foveal-session": name},
                timeout=60,
            )
            assert reply.parse().content[0].type == "text"
            assert reply.headers["x-foveal-max-tokens"] == "64000; asked 128000"
        small = create(
            model="claude-sonnet-4-6", max_tokens=99, messages=cast(Any, [{"role": "user", "content": "Hi."}])
        )
        assert "x-foveal-max-tokens" not in small.headers
        sent = [json.loads(seen.body) for seen in raw.seen]
        assert [body["max_tokens"] for body in sent] == [128_000, 64_000, 64_000, 99]
        assert [body.get("thinking", {}).get("budget_tokens") for body in sent] == [
            127_999,
            63_999,
            63_999,
            None,
        ]
        for name in ("first", "second"):
            events = until(
                lambda name=name: [e.fact for e in proxy.events(name) if isinstance(e.fact, Noted)]
            )
            assert [(fact.topic, "128,000" in fact.text) for fact in events] == [("max_tokens", True)]


def test_a_limit_that_is_refused_again_and_again_ends_with_the_providers_error(tmp_path: Path) -> None:
    with (
        RawUpstream(allowing(0)) as raw,
        ProxyServer(tmp_path, anthropic=raw.anthropic) as proxy,
        anthropic.Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError, match="maximum allowed number of output tokens"),
    ):
        client.messages.create(
            model="claude-sonnet-4-6", max_tokens=9, messages=cast(Any, [{"role": "user", "content": "Hi."}])
        )
    assert len(raw.seen) == 1


def test_a_window_that_two_sessions_were_told_spares_the_third_the_refusal(tmp_path: Path) -> None:
    words = "one two three four five six seven eight nine ten "
    with (
        StandIn(window=6_000, ratio=1.0) as provider,
        ProxyServer(tmp_path, openai=provider.openai, window=30_000) as proxy,
        openai.OpenAI(base_url=proxy.openai, api_key=KEY, max_retries=0) as client,
    ):
        for name in ("first", "second", "third"):
            told: list[Any] = []
            for turn in range(9):
                told += [{"role": "user", "content": f"{name} {turn}: {words * 100}"}]
                told += [{"role": "assistant", "content": f"Noted {turn}."}]
            told += [{"role": "user", "content": f"{name}: what now?"}]
            client.chat.completions.create(
                model="own-model", messages=told, extra_headers={"x-foveal-session": name}
            )
        refused = {
            name: sum(isinstance(event.fact, Overflowed) for event in proxy.events(name))
            for name in ("first", "second", "third")
        }
    assert refused["first"] >= 1
    assert refused["second"] >= 1
    assert refused["third"] == 0
