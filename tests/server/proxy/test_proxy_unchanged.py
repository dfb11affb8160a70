"""Claude Code reads a file again and gets only a reference to the earlier result: the request has the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from core.reduction.test_unchanged_answers import STILL_CURRENT, WASTED, file_text, read
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer

FILES = 20
WINDOW = 12_000
SECOND_READS = 5
HEADERS = {"x-api-key": "sk-ant-0123456789abcdef", "anthropic-version": "2023-06-01"}


def speak(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    content = [{"type": "text", "text": "Read on."}]
    yield answer(json.dumps({"type": "message", "role": "assistant", "content": content}).encode())


def with_cache_mark(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the history with the cache mark where Claude Code puts it: on the newest block."""
    if isinstance(history[-1]["content"], str):
        return history
    *others, block = history[-1]["content"]
    marked = {**block, "cache_control": {"type": "ephemeral"}}
    return [*history[:-1], {**history[-1], "content": [*others, marked]}]


def test_after_every_such_answer_the_request_has_the_text(tmp_path: Path) -> None:
    with (
        RawUpstream(speak) as upstream,
        ProxyServer(tmp_path, anthropic=upstream.anthropic, window=WINDOW) as proxy,
        httpx.Client(trust_env=False, timeout=DEADLINE) as http,
    ):
        history: list[dict[str, Any]] = [{"role": "user", "content": "Read all files, again and again."}]
        again = 0
        for call in range(FILES + SECOND_READS):
            history += read(call % FILES, call, None if call < FILES else (WASTED, STILL_CURRENT)[call % 2])
            body = {"model": "claude-sonnet-4-5", "max_tokens": 1_000, "messages": with_cache_mark(history)}
            url = f"http://127.0.0.1:{proxy.port}/v1/messages"
            assert http.post(url, headers=HEADERS, json=body).status_code == 200
            sent = json.loads(upstream.seen[-1].body)["messages"]
            text = json.dumps(file_text(call % FILES), ensure_ascii=False)[1:-1]
            assert text in json.dumps(sent, ensure_ascii=False), call
            again += text in json.dumps(sent[-1], ensure_ascii=False) and call >= FILES
        assert again > SECOND_READS * 0.8
