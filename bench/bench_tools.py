"""Measures what 100 tools of six MCP servers cost in every request, and what deferring them saves.

The schemas are recorded (`tools/record_mcp_tools.py`). One agent works through `TURNS`: in each turn it uses a few
tools. With deferral it loads those that it does not have yet, which takes a request of its own. Both ways get the
same results.

The bill counts a request as a provider with a prompt cache does: tools first, then the messages; what is the same
as in the request before from the beginning on has the price of cached tokens. A schema that is loaded in its place
is counted there. No provider was asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import foveal
from bench.measure import Row, progress
from bench.processes import import_from_tests
from foveal import events
from foveal.core.tokens.counter import counter
from foveal.core.view.loaded_tools import named_tools
from foveal.core.wire import wire_for
from foveal.replay.cache_cost import model_prices

CASES: Final = (
    ("anthropic", "claude-sonnet-4-6", "Claude"),
    ("openai_responses", "gpt-5.5", "GPT, Responses"),
    ("openai_chat", "gpt-4.1", "GPT, chat"),
    ("gemini", "gemini-2.5-pro", "Gemini"),
)
TURNS: Final = (
    ("github__list_issues", "github__get_issue"),
    ("filesystem__read_text_file", "filesystem__search_files"),
    ("github__get_issue", "filesystem__edit_file"),
    ("devtools__navigate_page", "devtools__evaluate_script", "devtools__click"),
    ("filesystem__edit_file", "filesystem__read_text_file"),
    ("devtools__navigate_page", "devtools__evaluate_script"),
    ("github__create_pull_request",),
    ("notion__API-post-search", "notion__API-patch-page"),
    ("filesystem__read_text_file", "filesystem__search_files"),
    ("github__get_issue", "github__list_issues"),
)
"""The tools that each turn uses; each is called `CALLS_PER_TOOL` times."""
CALLS_PER_TOOL: Final = 3
RESULT_WORDS: Final = 350
WINDOW: Final = 200_000


class Outcome(NamedTuple):
    """What one run cost."""

    requests: int
    tokens: int
    bill: float
    """Tokens at the price of uncached input."""
    breaks: int

    @property
    def mean(self) -> float:
        return self.tokens / self.requests


def rows() -> Iterator[Row]:
    for dialect, model, name in CASES:
        progress(f"{name} …")
        whole, deferred = run(dialect, model, defers=False), run(dialect, model, defers=True)
        used = len({tool for turn in TURNS for tool in turn})
        note = f"{whole.requests} requests, {used} of 100 tools used"
        yield Row(f"{name}, all tools: tokens per request", whole.mean, "tokens", note=note)
        note = f"{deferred.requests} requests, {deferred.requests - whole.requests} of them to load tools"
        yield Row(f"{name}, deferred: tokens per request", deferred.mean, "tokens", whole.mean, note=note)
        loads_in_place = dialect in ("anthropic", "openai_responses")
        limit = 0.0 if loads_in_place else None
        yield Row(f"{name}, deferred: prefix breaks", deferred.breaks, "requests", limit)
        note = f"{deferred.bill:,.0f} against {whole.bill:,.0f} tokens at the price of uncached input"
        yield Row(f"{name}, deferred: bill", deferred.bill / whole.bill, "%", 1.0, note=note)


def run(dialect: Any, model: str, *, defers: bool) -> Outcome:
    """Play the agent's turns, and count each request."""
    tools = import_from_tests("support.mcp_tools").tools_of(dialect)
    known = {name for name, _ in named_tools(tools)}
    assert known.issuperset(name for turn in TURNS for name in turn)
    wire, rng = wire_for(dialect), random.Random(7)
    # No reduction: the figures are those of the tools alone.
    ctx = foveal.Context(model, dialect=dialect, window=WINDOW, policy="off", defer_tools=defers)
    bill = _Bill(model)
    messages: list[Any] = []
    loaded: set[str] = set()

    def add(*facts: Any) -> None:
        messages[:] = wire.join([messages, *map(wire.write, facts)])

    def send() -> None:
        fitted = ctx.fit(messages, tools=tools)
        bill.add(ctx.tools, fitted)

    def call(name: str, arguments: dict[str, Any], result: str) -> None:
        send()
        id = f"call_{bill.requests}"
        made = events.Call(id=id, name=name, arguments=json.dumps(arguments))
        add(foveal.ModelSaid(content=(made,)), foveal.ToolReturned(call_id=id, name=name, content=result))

    for number, turn in enumerate(TURNS):
        add(foveal.UserSaid(content=f"Task {number}: {_words(rng, 40)}"))
        if defers and (missing := [name for name in turn if name not in loaded]):
            loaded.update(missing)
            call("load_tools", {"names": missing}, ctx.load_tools({"names": missing}))
        for name in turn * CALLS_PER_TOOL:
            call(name, {"query": _words(rng, 10)}, _words(rng, RESULT_WORDS))
        send()
        add(foveal.ModelSaid(content=f"Done: {_words(rng, 30)}"))
    return Outcome(bill.requests, bill.tokens, bill.cost, len(ctx.report().breaks))


class _Bill:
    """Counts requests as a provider with a prompt cache does."""

    def __init__(self, model: str) -> None:
        self._prices, self._count = model_prices(foveal.model(model)), counter("auto").count
        self._known: dict[str, int] = {}
        self._before: list[str] = []
        self.requests, self.tokens, self.cost = 0, 0, 0.0

    def add(self, tools: list[Any], messages: list[Any]) -> None:
        """Take in a request."""
        pieces = list(_pieces(tools, messages))
        cached, is_same = 0, True
        for place, piece in enumerate(pieces):
            self._known.setdefault(piece, self._count(piece))
            is_same = is_same and place < len(self._before) and self._before[place] == piece
            cached += self._known[piece] if is_same else 0
        total = sum(self._known[piece] for piece in pieces)
        self.requests, self.tokens = self.requests + 1, self.tokens + total
        self.cost += self._prices.bill(total, cached)
        self._before = pieces


def _pieces(tools: list[Any], messages: list[Any]) -> Iterator[str]:
    """Yield what the model reads, in its order: the tools that it has from the beginning, then the messages, with
    the schema of each tool that a message loads."""
    waiting = {name: tool for name, tool in named_tools(tools) if tool.get("defer_loading")}
    for name, tool in named_tools(tools):
        if name not in waiting:
            yield json.dumps(tool)
    for message in messages:
        text = json.dumps(message)
        yield text
        if "tool_reference" in text:
            yield from (
                json.dumps(tool) for name, tool in waiting.items() if f'"tool_name": "{name}"' in text
            )


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_VOCABULARY) for _ in range(count))


_VOCABULARY: Final = (
    "parser", "reads", "line", "number", "error", "page", "issue", "branch", "commit", "file", "folder", "table",
    "value", "index", "query", "result", "found", "missing", "changed", "closed", "merged", "label", "title",
)  # fmt: skip
