"""What a provider's cache gives: nothing without marks, and what keeps a marked prefix from being read."""

from __future__ import annotations

from typing import Any

import pytest

from foveal.providers.anthropic import add_breakpoints
from foveal.testing import CapturedRequests, PrefixNotCached, assert_stable_prefix

Json = dict[str, Any]
SYSTEM = "You are a careful agent. Never delete anything."
MANUAL = "Each bound of each part is inclusive. " * 400
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
CLAUDE = "claude-sonnet-4-5"


def text(said: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": said} | ({"cache_control": mark} if mark else {})


def turns(count: int, *, manual: str = MANUAL, mark: Json | None = None) -> list[Json]:
    """The messages of a request, the newest with a mark."""
    said = [{"role": "user", "content": [text(manual)]}]
    for number in range(count):
        said.append({"role": "assistant", "content": [text(f"Part {number} has a bound that is wrong.")]})
        said.append({"role": "user", "content": [text(f"Look at part {number}.")]})
    if mark is not None:
        said[-1]["content"][-1] = said[-1]["content"][-1] | {"cache_control": mark}
    return said


def body(messages: list[Json], **more: Any) -> Json:
    return {"model": CLAUDE, "system": [text(SYSTEM)], "messages": messages} | more


def captured(*bodies: Json) -> CapturedRequests:
    requests = CapturedRequests()
    for one in bodies:
        assert requests.record(one, url="https://example.test/v1/messages")
    return requests


def codes(*bodies: Json) -> list[tuple[int, str]]:
    return [(one.request, one.code) for one in captured(*bodies).uncached()]


def cached(*bodies: Json) -> int:
    return captured(*bodies).costs()[0].cached_tokens


def test_an_agent_that_marks_its_newest_block_reads_what_it_sent_before() -> None:
    bodies = [body(turns(count, mark=MARK)) for count in range(3)]
    assert codes(*bodies) == []
    requests = captured(*bodies)
    sizes = [captured(one).costs()[0].tokens for one in bodies]
    assert requests.costs()[0].cached_tokens == sum(sizes[:2])
    requests.check()


def test_without_marks_nothing_is_cached() -> None:
    bodies = [body(turns(count)) for count in range(3)]
    assert codes(*bodies) == [(2, "no_marks"), (3, "no_marks")]
    assert cached(*bodies) == 0
    with pytest.raises(PrefixNotCached) as caught:
        assert_stable_prefix(bodies)
    shown = str(caught.value)
    assert shown.startswith(
        "the prompt prefix does not move, but the cache is not used for it in 2 of 3 requests\n\n"
        "request 2 begins like request 1 and does not read it from the cache: request 1 has no cache mark\n"
    )
    assert 'remedy: put "cache_control": {"type": "ephemeral"}' in shown
    assert "again in: 3" in shown


def test_a_mark_of_the_whole_request_is_on_its_last_block() -> None:
    bodies = [body(turns(count), cache_control=MARK) for count in range(3)]
    assert codes(*bodies) == []
    assert cached(*bodies) > 0


def test_a_mark_that_moves_back_reads_nothing_of_the_messages() -> None:
    first, second = body(turns(1, mark=MARK)), body(turns(2))
    second["messages"][0]["content"][0]["cache_control"] = MARK
    assert codes(first, second) == [(2, "mark_moved")]
    (fault,) = captured(first, second).uncached()
    assert "messages[0]" in fault.cause
    assert "messages[2]" in fault.cause


def test_a_mark_on_text_that_changes_caches_nothing() -> None:
    bodies = [body(turns(1)) for _ in range(2)]
    for number, one in enumerate(bodies):
        one["messages"][-1] = {"role": "user", "content": [text(f"It is 14:0{number}.", MARK)]}
    requests = captured(*bodies)
    assert requests.breaks() == [] or requests.costs()[0].cached_tokens == 0
    assert cached(*bodies) == 0


def test_a_ttl_that_flips_writes_the_cache_again() -> None:
    bodies = [body(turns(count, mark=mark)) for count, mark in enumerate((HOUR, MARK, HOUR))]
    assert codes(*bodies) == [(2, "ttl_changed"), (3, "ttl_changed")]
    (fault, *_) = captured(*bodies).uncached()
    assert fault.cause == "its mark has ttl 5m, and messages[0] was cached with 1h"
    assert codes(*(body(turns(count, mark=HOUR)) for count in range(3))) == []


def test_a_mark_after_too_few_tokens_caches_nothing() -> None:
    bodies = [body(turns(count), system=[text(SYSTEM, MARK)]) for count in range(2)]
    (fault,) = captured(*bodies).uncached()
    assert fault.code == "too_short"
    assert fault.cause.endswith("and claude-sonnet-4-5 caches none below 1,024")
    assert cached(*bodies) == 0


def test_a_request_that_is_too_short_as_a_whole_is_no_fault() -> None:
    bodies = [body(turns(count, manual="Short.", mark=MARK)) for count in range(3)]
    assert codes(*bodies) == []
    assert cached(*bodies) == 0
    assert_stable_prefix(bodies)
    assert_stable_prefix([body(turns(count, manual="Short.")) for count in range(3)])


@pytest.mark.parametrize(("added", "found"), [(19, []), (20, [(2, "look_back")])])
def test_the_provider_looks_back_twenty_blocks(added: int, found: list[tuple[int, str]]) -> None:
    first = body(turns(0, mark=MARK))
    results = [text(f"result {number}") for number in range(added - 2)]
    second = body(
        [
            *turns(0),
            {"role": "assistant", "content": [text("I look at all of them.")]},
            {"role": "user", "content": [*results, text("That is all.", MARK)]},
        ]
    )
    assert codes(first, second) == found


def test_the_marks_that_foveal_sets_are_read_however_much_is_added() -> None:
    first = {"model": CLAUDE, "system": SYSTEM, "messages": turns(1)}
    second = {"model": CLAUDE, "system": SYSTEM, "messages": turns(30)}
    bodies = [add_breakpoints(first, []), add_breakpoints(second, first["messages"])]
    assert codes(*bodies) == []
    assert cached(*bodies) > 1_024


def test_bedrock_s_points_are_read() -> None:
    def converse(count: int, *, is_marked: bool) -> Json:
        said = [
            {"role": one["role"], "content": [{"text": part["text"]} for part in one["content"]]}
            for one in turns(count)
        ]
        if is_marked:
            said[-1]["content"].append({"cachePoint": {"type": "default"}})
        return {"messages": said, "system": [{"text": SYSTEM}], "inferenceConfig": {}}

    def uncached(model: str, *, is_marked: bool) -> list[str]:
        requests = CapturedRequests()
        for count in range(2):
            url = f"https://example.test/model/{model}/converse"
            assert requests.record(converse(count, is_marked=is_marked), url=url)
        return [one.code for one in requests.uncached()]

    assert uncached("anthropic.claude-sonnet-4-5-v1:0", is_marked=True) == []
    assert uncached("anthropic.claude-sonnet-4-5-v1:0", is_marked=False) == ["no_marks"]
    assert uncached("meta.llama3-1-70b-instruct-v1:0", is_marked=False) == []


def test_openai_caches_by_itself_and_not_below_its_minimum() -> None:
    def chat(manual: str) -> int:
        requests = CapturedRequests()
        for count in range(3):
            said = [
                {"role": one["role"], "content": one["content"][0]["text"]}
                for one in turns(count, manual=manual)
            ]
            requests.record({"model": "gpt-4.1", "messages": said})
        requests.check()
        return requests.costs()[0].cached_tokens

    assert chat(MANUAL) > 2 * 1_024
    assert chat("Short.") == 0


@pytest.mark.long
def test_a_marked_test_fails_when_the_agent_sets_no_marks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import json
import httpx
import pytest

@pytest.mark.stable_prefix
def test_agent():
    def reply(request):
        return httpx.Response(200, json={})

    client = httpx.Client(transport=httpx.MockTransport(reply))
    said = [{"role": "user", "content": "Read this. " * 2_000}]
    for question in ("Who?", "When?"):
        said = [*said, {"role": "user", "content": question}]
        client.post("https://example.test/v1/messages", json={"model": "claude-sonnet-4-5", "messages": said})
"""
    )
    result = pytester.runpytest_inprocess("-p", "foveal")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the cache is not used for it in 1 of 2 requests", "*no cache mark*"])
