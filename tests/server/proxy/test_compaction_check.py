"""The check for lost compactions finds what a provider would no longer know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foveal.core.wire.native_compaction import COMPACTION_TRIGGER, compaction_field
from support.agent_upstream import COMPACT_PATH, AgentUpstream
from support.serve_process import HttpReply, ask

Json = dict[str, Any]
ASKED = {"role": "user", "content": "Find a part."}
SHELL = {"name": "exec_command", "input_schema": {"type": "object"}}
FAULTS = {
    "lost": lambda newest: [ASKED],
    "changed": lambda newest: [ASKED, {**newest, "encrypted_content": "other"}],
    "twice": lambda newest: [ASKED, newest, newest],
    "behind a newer call": lambda newest: [ASKED, *call(9), newest],
    "in front of an older call": lambda newest: [ASKED, newest, *call(0)],
}


def call(number: int) -> list[Json]:
    made = {"type": "function_call", "call_id": f"call_{number}_0", "name": "exec_command", "arguments": "{}"}
    return [made, {"type": "function_call_output", "call_id": f"call_{number}_0", "output": "ok"}]


def respond(upstream: AgentUpstream, items: list[Json], path: str = "/v1/responses") -> HttpReply:
    body = {"model": "gpt-5", "input": items, "tools": [{"type": "function", **SHELL}]}
    return ask(upstream.anthropic, path, body={**body, "stream": path != COMPACT_PATH})


def compacted(upstream: AgentUpstream) -> Json:
    respond(upstream, [ASKED, COMPACTION_TRIGGER])
    assert upstream.memory.newest is not None
    return upstream.memory.newest


@pytest.mark.parametrize("kind", FAULTS)
def test_a_request_without_the_newest_item_in_its_place_is_refused(kind: str) -> None:
    with AgentUpstream() as upstream:
        newest = compacted(upstream)
        assert respond(upstream, [ASKED, *call(0), newest, *call(9)]).status == 200
        assert respond(upstream, FAULTS[kind](newest)).status == 400
        assert upstream.faults[-1].startswith("compaction 1")


def test_an_older_item_is_not_the_newest() -> None:
    with AgentUpstream() as upstream:
        older = compacted(upstream)
        respond(upstream, [ASKED, older, COMPACTION_TRIGGER])
        assert upstream.compactions == 2
        assert respond(upstream, [ASKED, older]).status == 400


def test_the_endpoint_that_compacts_returns_messages_and_an_item() -> None:
    with AgentUpstream() as upstream:
        reply = respond(upstream, [ASKED], COMPACT_PATH).json
        assert reply["output"] == [ASKED, upstream.memory.newest]
        assert respond(upstream, reply["output"]).status == 200
        assert respond(upstream, [ASKED]).status == 400


def test_a_block_of_anthropic_comes_first() -> None:
    body: Json = {"model": "claude-opus-5-5", "max_tokens": 500, "tools": [SHELL], "stream": True}
    with AgentUpstream() as upstream:
        field = {"compaction": compaction_field()}
        streamed = ask(upstream.anthropic, "/v1/messages", body={**body, **field, "messages": [ASKED]}).body
        assert b'"stop_reason": "compaction"' in streamed
        block = {"role": "assistant", "content": [upstream.memory.newest]}
        statuses = [
            ask(upstream.anthropic, "/v1/messages", body={**body, "messages": messages}).status
            for messages in ([block, ASKED], [ASKED, block, ASKED], [ASKED])
        ]
        assert statuses == [200, 400, 400], json.dumps(upstream.faults)
