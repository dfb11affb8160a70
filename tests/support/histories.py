"""Random agent conversations for property tests, and helpers that run them through a `Context`.

A `Script` is a conversation independent of the dialect: messages of users, models and tools, with the defects of
real logs (missing, orphaned, late and repeated results, repeated ids, empty messages, null content, system text in
the middle, images, very long results). `write_script` writes it in a dialect. An agent loop calls `fit` before each
message of the model, so a written script also has the lengths of the history at those calls.

Hypothesis draws only a seed and sizes, and a small generator does the rest: drawing each of a hundred values would
take longer than the tests. Shrinking makes conversations shorter.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import strategies as st

import foveal
from foveal import Context, ContextOverflow, UnknownHandle
from foveal.core.log import (
    AnyFact,
    Branched,
    BranchEnded,
    Call,
    Clipped,
    Compacted,
    Dialect,
    Dropped,
    Equipped,
    Event,
    ForeignSummary,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    SnapshotTaken,
    Steered,
    Superseded,
    Text,
    ToolReturned,
    Unknown,
    Used,
    UserSaid,
    decode,
    encode,
    handle,
    raw,
)
from foveal.core.log.events import BRANCH, MEMORY_SOURCE, UNREADABLE
from foveal.core.models.model import Model
from foveal.core.tokens import Estimate, MessageTokens
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view import render_view
from foveal.core.view.fold import effective_events, fold
from foveal.core.view.view import View
from foveal.core.wire import wire_for
from foveal.core.wire.media import measure_media
from support.legality import check_anthropic, check_bedrock, check_chat, check_gemini, check_responses

DIALECTS: Final[tuple[Dialect, ...]] = ("openai_chat", "openai_responses", "anthropic", "gemini", "bedrock")
"""All dialects. `CHECKS`, `TOOLS` and `_WRITERS` have an entry for each."""
CHECKS: Final[dict[Dialect, Callable[[list[dict[str, Any]]], list[str]]]] = {
    "openai_chat": check_chat,
    "openai_responses": check_responses,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
    "bedrock": check_bedrock,
}
PREFIX_MOVERS: Final = (Masked, Dropped, Compacted, Superseded, Reverted, Rewound, ForeignSummary)
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
ESTIMATE: Final = Estimate()
Json = dict[str, Any]


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────

_LINES: Final = (
    "def main(path: str) -> None:\n    return open(path).read()\n",
    "src/foveal/view.py:123: error: Name 'x' is not defined\n",
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经十三\n",
    "👩‍👩‍👧‍👦 🇩🇪 é ñ 🙂 — “quoted”\n",
    '{"id": 17, "name": "Zoë", "path": "/usr/lib/python3.11/json/decoder.py", "ok": true},\n',
    "word word word word word word word word\n",
    "AAAABBBBccccDDDD0123456789+/AAAABBBBccccDDDD0123456789+/",
    'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: bad value 77\n',
    "[foveal: masked result of bash ls; 900 tokens, 12 lines; whole text: e3]\n",
    "\x1b[31mred\x1b[0m\ttab\u200b\u202e\x00 NUL and odd spaces\r\n",
)
SHORT_TEXTS: Final = (
    "ok", "", " ", "Please go on.", "好的，继续。", "🙂", "exit code 1", "done\n",
    "[foveal: 3 older messages are not shown]",
)  # fmt: skip


def short_text(rng: Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(SHORT_TEXTS)
    return "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x20, 0xD7FF)))) for _ in range(12))


def long_text(rng: Random, max_lines: int = 60) -> str:
    """Return a line repeated at random, sometimes with its number."""
    line, times = rng.choice(_LINES), rng.randint(1, max_lines)
    return "".join(f"{n} {line}" for n in range(times)) if rng.random() < 0.5 else line * times


def text(rng: Random) -> str:
    return short_text(rng) if rng.random() < 0.6 else long_text(rng, 12)


# ── Scripts ───────────────────────────────────────────────────────────────────────────────────────────────


class InputMessage(NamedTuple):
    """A message of the user or the system; a list of parts if `listed`, with an image if `picture`."""

    who: str
    text: str
    listed: bool = False
    picture: bool = False


class ModelMessage(NamedTuple):
    text: str | None
    calls: tuple[tuple[str, str, Json], ...] = ()
    listed: bool = False
    thought: bool = False
    summary: str = ""
    """A summary that the provider made before it answered, in the dialects that have such summaries."""


class ToolResult(NamedTuple):
    call_id: str
    text: str
    listed: bool = False
    failed: bool = False
    late: bool = False
    """Whether it does not directly follow its call, or is a second result."""
    name: str = "bash"


ScriptMessage = InputMessage | ModelMessage | ToolResult
Script = list[ScriptMessage]

TOOL_NAMES: Final = ("bash", "read_file", "search")


def make_script(seed: int, turns: int, steps: int, max_lines: int) -> Script:
    rng = Random(seed)
    script: Script = []
    if rng.random() < 0.5:
        script.append(InputMessage("system", text(rng)))
    used: list[str] = []
    for turn in range(turns):
        if turn and rng.random() < 0.15:
            script.append(InputMessage("system", text(rng)))
        script.append(_random_user(rng, turn))
        if rng.random() < 0.1:
            script.append(_random_user(rng, turn))
        for _ in range(rng.randint(0, steps)):
            _add_step(rng, script, used, max_lines)
        if rng.random() < 0.8:
            script.append(ModelMessage(text(rng), listed=rng.random() < 0.5))
    return script


def _random_user(rng: Random, turn: int) -> InputMessage:
    words = text(rng)
    kind = rng.randint(0, 5)
    marked = f"question {turn}: {words}" if rng.random() < 0.8 else words
    return InputMessage("user", marked, listed=kind < 2, picture=kind == 0)


def _add_step(rng: Random, script: Script, used: list[str], max_lines: int) -> None:
    calls: list[tuple[str, str, Json]] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(used) if used and rng.random() < 0.15 else f"call_{len(used)}"
        if name in [call[0] for call in calls]:
            continue
        used.append(name)
        value = long_text(rng, 30) if rng.random() < 0.2 else f"cat file_{len(used)}.py"
        calls.append((name, rng.choice(TOOL_NAMES), {"command": value, "n": len(used)}))
    words = rng.choice((None, "", "Let me look.", "我看一下"))
    foreign = Random(f"{rng.getstate()[1][:2]}{len(used)}")  # leaves the rest of the script as it was
    summary = f"So far {len(used)} calls. {short_text(foreign)}" if foreign.random() < 0.08 else ""
    script.append(ModelMessage(words, tuple(calls), thought=rng.random() < 0.2, summary=summary))
    order = rng.sample(calls, len(calls))
    defect = rng.randint(0, 14)
    for call in order if defect else ():  # 0: aborted, nothing came back
        most = 40 * max_lines if rng.random() < 0.04 else max_lines
        words = long_text(rng, most) if rng.random() < 0.4 else text(rng)
        listed, failed = rng.random() < 0.2, rng.random() < 0.1
        script.append(ToolResult(call[0], words, listed=listed, failed=failed, name=call[1]))
    if defect == 1:
        script.append(ToolResult(f"nobody_{len(used)}", "an orphan", late=True))
    if defect == 2:
        script.append(ToolResult(calls[0][0], "the same again", late=True, name=calls[0][1]))
    if defect == 3 and len(order) > 1:
        late = script.pop()
        assert isinstance(late, ToolResult)
        script += [InputMessage("user", "are you still there?"), late._replace(late=True)]


def scripts(*, turns: int = 4, steps: int = 4, max_lines: int = 120) -> st.SearchStrategy[Script]:
    return st.builds(
        make_script,
        st.integers(0, 2**32),
        st.integers(1, turns),
        st.integers(0, steps),
        st.integers(1, max_lines),
    )


# ── Scripts in a dialect ──────────────────────────────────────────────────────────────────────────────────


class ScriptedHistory(NamedTuple):
    dialect: Dialect
    messages: list[Json]
    calls: list[int]
    """Lengths of the history at which an agent loop calls the model."""
    late: list[int]
    """Indexes of messages with a late result."""
    script: Script
    ends: list[int]
    """For each message of the script, the length of the history after it."""


def write_script(script: Script, dialect: Dialect) -> ScriptedHistory:
    messages: list[Json] = []
    calls: list[int] = []
    late: list[int] = []
    ends: list[int] = []
    for message in script:
        if isinstance(message, ModelMessage) and messages and (not calls or calls[-1] < len(messages)):
            calls.append(len(messages))
        if isinstance(message, ToolResult) and message.late:
            late.append(len(messages))
        messages += _WRITERS[dialect](message)
        ends.append(len(messages))
    if messages and (not calls or calls[-1] < len(messages)):
        calls.append(len(messages))
    return ScriptedHistory(dialect, messages, calls, late, script, ends)


def _chat(message: ScriptMessage) -> list[Json]:
    match message:
        case InputMessage():
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
            parts: list[Json] = [{"type": "text", "text": message.text}] + [picture] * message.picture
            return [{"role": message.who, "content": parts if message.listed else message.text}]
        case ModelMessage():
            listed = message.listed and message.text
            written: Json = {"role": "assistant", "content": message.text}
            if listed:
                written["content"] = [{"type": "text", "text": message.text}]
            if message.calls:
                written["tool_calls"] = [
                    {
                        "id": c[0],
                        "type": "function",
                        "function": {"name": c[1], "arguments": json.dumps(c[2])},
                    }
                    for c in message.calls
                ]
            return [written]
        case ToolResult():
            content = [{"type": "text", "text": message.text}] if message.listed else message.text
            return [{"role": "tool", "tool_call_id": message.call_id, "content": content}]


def foreign_item(summary: str) -> Json:
    """Return a compaction item of OpenAI."""
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": b64encode(summary.encode()).decode()}


def foreign_block(summary: str) -> Json:
    """Return a compaction block of Anthropic."""
    return {"type": "compaction", "content": summary, "signature": "c2lnbmVk", "tool_changes": []}


def foreign_summaries(messages: list[Json]) -> list[Json]:
    """Return the compaction items and blocks of a list of messages, in order."""
    blocks = (message.get("content") if "role" in message else [message] for message in messages)
    return [b for found in blocks if isinstance(found, list) for b in found if b.get("type") == "compaction"]


def _responses(message: ScriptMessage) -> list[Json]:
    match message:
        case InputMessage():
            picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
            parts: list[Json] = [{"type": "input_text", "text": message.text}] + [picture] * message.picture
            return [{"role": message.who, "content": parts if message.listed else message.text}]
        case ModelMessage():
            items: list[Json] = [foreign_item(message.summary)] if message.summary else []
            if message.thought and (message.text or message.calls):
                items.append({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"})
            if message.text or not message.calls:
                content: Any = message.text or ""
                if message.listed:
                    content = [{"type": "output_text", "text": message.text or "", "annotations": []}]
                items.append({"role": "assistant", "content": content})
            items += [
                {"type": "function_call", "call_id": c[0], "name": c[1], "arguments": json.dumps(c[2])}
                for c in message.calls
            ]
            return items
        case ToolResult():
            output = [{"type": "input_text", "text": message.text}] if message.listed else message.text
            return [{"type": "function_call_output", "call_id": message.call_id, "output": output}]


def _anthropic(message: ScriptMessage) -> list[Json]:
    match message:
        case InputMessage():
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            picture = {"type": "image", "source": source}
            parts: list[Json] = [{"type": "text", "text": message.text}] + [picture] * message.picture
            return [{"role": message.who, "content": parts if message.listed else message.text}]
        case ModelMessage():
            blocks: list[Json] = [foreign_block(message.summary)] if message.summary else []
            if message.thought:
                blocks.append({"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"})
            if message.text:
                blocks.append({"type": "text", "text": message.text})
            for c in message.calls:
                blocks.append({"type": "tool_use", "id": c[0], "name": c[1], "input": c[2]})
            plain = not (message.calls or message.thought or message.listed or message.summary)
            return [{"role": "assistant", "content": (message.text or "") if plain else blocks}]
        case ToolResult():
            content: Any = [{"type": "text", "text": message.text}] if message.listed else message.text
            block: Json = {"type": "tool_result", "tool_use_id": message.call_id, "content": content}
            if message.failed:
                block["is_error"] = True
            return [{"role": "user", "content": [block]}]


def _gemini(message: ScriptMessage) -> list[Json]:
    match message:
        case InputMessage():
            picture = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
            return [{"role": message.who, "parts": [{"text": message.text}] + [picture] * message.picture}]
        case ModelMessage():
            parts: list[Json] = [{"text": "Hm.", "thought": True}] * message.thought
            if message.text is not None:
                parts.append({"text": message.text})
            parts += [
                {"functionCall": {**_gemini_id(c[0]), "name": c[1], "args": c[2]}} for c in message.calls
            ]
            if message.calls:
                parts[-len(message.calls)]["thoughtSignature"] = "c2lnbmVk"
            return [{"role": "model", "parts": parts}]
        case ToolResult():
            field = "error" if message.failed else "result" if message.listed else "output"
            body = {
                **_gemini_id(message.call_id), "name": message.name, "response": {field: message.text}
            }  # fmt: skip
            return [{"role": "user", "parts": [{"functionResponse": body}]}]


def _gemini_id(call_id: str) -> Json:
    """Return the id of a call; half of them have none, as is usual in Gemini."""
    return {"id": call_id} if call_id[-1] in "02468" else {}


def _bedrock(message: ScriptMessage) -> list[Json]:
    match message:
        case InputMessage():
            picture = {"image": {"format": "png", "source": {"bytes": PIXEL}}}
            parts: list[Json] = [{"text": message.text}] + [picture] * message.picture
            return [{"role": message.who, "content": parts}]
        case ModelMessage():
            blocks: list[Json] = []
            if message.thought:
                thought = {"text": "Hm.", "signature": "c2lnbmVk"}
                blocks.append({"reasoningContent": {"reasoningText": thought}})
            if message.text is not None:
                blocks.append({"text": message.text})
            for c in message.calls:
                blocks.append({"toolUse": {"toolUseId": c[0], "name": c[1], "input": c[2]}})
            return [{"role": "assistant", "content": blocks}]
        case ToolResult():
            block: Json = {"toolUseId": message.call_id, "content": [{"text": message.text}]}
            if message.failed or message.listed:
                block["status"] = "error" if message.failed else "success"
            return [{"role": "user", "content": [{"toolResult": block}]}]


_WRITERS: Final = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}


def scripted_histories(**how: int) -> st.SearchStrategy[ScriptedHistory]:
    return st.builds(write_script, scripts(**how), st.sampled_from(DIALECTS))


# ── Settings ────────────────────────────────────────────────────────────────────────────

POLICIES: Final[tuple[Any, ...]] = (
    "economy",
    "rolling",
    "recent",
    "off",
    {
        "preset": "rolling",
        "max_history_tokens": 700,
        "keep_first": 1,
        "keep_last": 2,
        "clip": {"tokens": 300},
    },
    {"preset": "economy", "keep_last": 1, "target": 0.3, "early_tokens": 400},
    {"preset": "recent", "target": 0.5, "act": 1.0},
)
WINDOWS: Final = (700, 1_500, 3_000, 8_000, 40_000)


def plain_model(window: int, **known: Any) -> Model:
    """Return an unknown model, so that a token is a unit."""
    return foveal.model("somebody/unheard-of", window=window, **known)


class ManualClock:
    """A clock that tests advance by setting `now`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def context(window: int = 8_000, policy: Any = "economy", **how: Any) -> Context:
    """Return a context that counts with the estimate and has a stopped clock."""
    how.setdefault("tokenizer", ESTIMATE)
    how.setdefault("clock", ManualClock())
    how.setdefault("reserve", window // 10)
    return Context(plain_model(window), policy=policy, **how)


def supersede_some(ctx: Context) -> None:
    """Say of a message of the user or a pinned rule, in some conversations at some calls, that the newest message
    replaces it; sometimes take that back."""
    rng = Random(len(ctx.log))
    events = effective_events(ctx.log)
    said = [event for event in events if isinstance(event.fact, UserSaid)]
    if not said or rng.random() < 0.5:
        return
    rules = [event for event in events if isinstance(event.fact, Pinned) and event.fact.text]
    older = [event for event in (*rules, *said) if event.seq < said[-1].seq]
    made = [event for event in events if isinstance(event.fact, Superseded)]
    if made and rng.random() < 0.3:
        ctx.undo(rng.choice(made).handle)
    elif older:
        with suppress(ContextOverflow):
            ctx.supersede(rng.choice(older).handle, by=said[-1].handle)


def steer_some(ctx: Context) -> None:
    """Give a message a priority, in some conversations at some calls, or set a focus; sometimes take it back."""
    rng = Random(len(ctx.log) * 11 + 3)
    shown = [event for event in ctx.log if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)]
    if shown and rng.random() < 0.3:
        with suppress(UnknownHandle):  # a rewind has taken it out
            marked = ctx.mark(rng.choice(shown).handle, priority=rng.choice(("low", "low", "high", "normal")))
            if rng.random() < 0.2:
                ctx.undo(marked)
    if rng.random() < 0.1:
        ctx.focus_next(rng.choice(("", "question 0", short_text(rng).strip())))


def branch_some(ctx: Context) -> None:
    """Begin branches and end them in some conversations at some calls: with a result or with the model's last
    text; sometimes with a kept event, and sometimes unfolded again."""
    rng = Random(len(ctx.log) * 7 + 1)
    open_ones = [branch for branch in ctx.branches() if branch.is_open]
    if rng.random() < 0.25 and len(open_ones) < 3:
        ctx.begin_branch(rng.choice(("Find the bug.", "question 0", short_text(rng).strip() or "Look.")))
    elif open_ones and rng.random() < 0.5:
        branch = rng.choice(open_ones)
        inside = range(int(branch.handle[1:]) + 1, len(ctx.log))
        keep = [rng.choice(inside)] if inside and rng.random() < 0.3 else []
        fold = ctx.end_branch(
            rng.choice((None, "It is fixed.", long_text(rng))), name=branch.handle, keep=keep
        )
        if fold and rng.random() < 0.2:
            with suppress(ContextOverflow):
                ctx.undo(fold)


TOOLS: Final[dict[str, list[Json]]] = {
    "openai_chat": [{"type": "function", "function": {"name": "bash", "description": "run " * 40}}],
    "openai_responses": [{"type": "function", "name": "bash", "description": "run " * 40}],
    "anthropic": [{"name": "bash", "description": "run " * 40, "input_schema": {"type": "object"}}],
    "gemini": [{"functionDeclarations": [{"name": "bash", "description": "run " * 40}]}],
    "bedrock": [{"toolSpec": {"name": "bash", "description": "run " * 40, "inputSchema": {"json": {}}}}],
}


# ── Requests, inspected without the code under test ──────────────────────────────────────────────────────


def wire_bytes(messages: list[Json]) -> bytes:
    return json.dumps(messages, ensure_ascii=True, sort_keys=False).encode()


def flatten(messages: list[Json]) -> list[tuple[str, str]]:
    """Return a request as (role, part) pairs, the same whether or not neighbours were merged (Anthropic)."""
    pieces: list[tuple[str, str]] = []
    for message in messages:
        role = message.get("role") or message.get("type")
        content = message.get("content") or message.get("parts")
        if isinstance(content, list) and set(message) <= {"role", "content", "parts"}:
            pieces += [(role, json.dumps(part)) for part in content]
        elif isinstance(content, str) and set(message) == {"role", "content"}:
            pieces.append((role, json.dumps({"type": "text", "text": content})))
        else:
            pieces.append((role, json.dumps(message)))
    return pieces


def strings(value: Any) -> Iterator[str]:
    """Yield all texts of a request; arguments sent as an object are yielded as JSON text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (
                [json.dumps(item)] if key in ("input", "args") and isinstance(item, dict) else strings(item)
            )
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def may_move_prefix(events: Iterable[Event]) -> bool:
    """Return whether one of these events may change what was shown before."""
    return any(
        isinstance(e.fact, PREFIX_MOVERS)
        or (isinstance(e.fact, Clipped) and e.fact.rule.startswith("squeeze"))  # "squeeze: no consent"
        or (isinstance(e.fact, Instructed) and (e.fact.replaces is not None or e.fact.is_memory))
        or (isinstance(e.fact, Pinned) and e.fact.whole)
        for e in events
    )


def missing_texts(request: list[Json], story: ScriptedHistory, taken: int) -> list[str]:
    """Return what no reduction may hide and this request of the first `taken` messages does not have: system texts,
    the latest message of the user, and open calls with their ids."""
    words = set(strings(request))
    so_far = [message for message, end in zip(story.script, story.ends, strict=True) if end <= taken]
    inputs = [message for message in so_far if isinstance(message, InputMessage)]
    latest = [message for message in inputs if message.who == "user"][-1:]
    protected = [*(message for message in inputs if message.who == "system"), *latest]
    missing = [m.text for m in protected if m.text.strip() and m.text not in words]
    if so_far and isinstance(so_far[-1], ModelMessage):
        given = set(strings(story.messages[:taken]))  # without the ids of Gemini's calls that have none
        in_arguments = [*words, *map(_texts_in_arguments, words)]
        for call_id, _, arguments in so_far[-1].calls:
            missing += [call_id] if call_id in given - words else []
            command = arguments["command"]
            missing += [] if any(command in word for word in in_arguments) else [command]
    return missing


def _texts_in_arguments(word: str) -> str:
    """Return the texts inside JSON arguments."""
    try:
        value = json.loads(word)
    except ValueError:
        return ""
    return "\n".join(strings(value))


def recount(messages: list[Json], counter: Counter = ESTIMATE) -> int:
    """Count the units of a request from its texts, arguments and images; what comes before a summary of the
    provider does not count."""
    newest = max((at for at, message in enumerate(messages) if foreign_summaries([message])), default=0)
    return sum(_recount(message, counter) for message in messages[newest:])


def _recount(message: Json, counter: Counter) -> int:
    units = PER_MESSAGE if message.get("type") not in ("function_call", "reasoning") else 0
    for call in message.get("tool_calls") or ():
        units += counter.count(call["function"]["name"]) + counter.count(call["function"]["arguments"])
    if message.get("type") == "function_call":
        units += counter.count(message["name"]) + counter.count(message["arguments"])
    for field in ("content", "output", "parts"):
        units += _recount_content(message.get(field), counter)
    return units


def _recount_content(content: Any, counter: Counter) -> int:
    if isinstance(content, str):
        return counter.count(content)
    units = 0
    for part in content or ():
        if part.get("type") in ("image", "image_url", "input_image") or not part.keys().isdisjoint(
            ("inlineData", "image")
        ):
            units += measure_media(part).units
        elif call := part if part.get("type") == "tool_use" else part.get("functionCall"):
            given = msgspec.json.encode(call["input"] if "input" in call else call["args"]).decode()
            units += counter.count(call["name"]) + counter.count(given)
        elif part.get("type") == "tool_result":
            units += _recount_content(part.get("content"), counter)
        elif "toolUse" in part:
            given = msgspec.json.encode(part["toolUse"]["input"]).decode()
            units += counter.count(part["toolUse"]["name"]) + counter.count(given)
        elif "toolResult" in part:
            units += _recount_content(part["toolResult"]["content"], counter)
        elif "functionResponse" in part:
            units += sum(map(counter.count, part["functionResponse"]["response"].values()))
        else:
            units += counter.count(part.get("text", ""))
    return units


# ── Logs and views ────────────────────────────────────────────────────────────────────────────────────────


def encode_and_decode(log: tuple[Event, ...] | list[Event]) -> list[Event]:
    """Return a log after a round trip through lines of JSON."""
    return [decode(line) for line in b"\n".join(map(encode, log)).split(b"\n")]


def render_log(log: Any, dialect: Dialect, counter: Counter = ESTIMATE) -> list[Json]:
    return render_view(fold(list(log), MessageTokens(counter)), wire_for(dialect))[0]


def describe_view(view: View) -> tuple[Any, ...]:
    """Return the whole state of a view as one comparable value."""
    return (
        view.units,
        [(s.seq, s.kind, s.is_pinned, s.message_count, s.covers, list(s.facts())) for s in view.steps],
        {source: (shown.seq, shown.fact) for source, shown in view.asides.items()},
        list(view.unmasked_results),
        list(view.media.items()),
        [(c.level, c.owner, c.ranges, c.rule) for c in view.covered_ranges],
        view.orphan_results,
        view.late_results,
        [s.seq for s in view.permanent_steps],
        (view.result_count, view.turn_count, view.dropped.messages, view.tools),
        (view.superseded, view.superseded_since, view.open_branches, view.priorities),
    )


# ── Logs with every kind of fact ─────────────────────────────────────────────────────────────────────────

_FACT_KINDS: Final = (
    "mask", "mask", "clip", "drop", "compact", "revert", "rewind", "pin", "pin_event", "pin_whole", "supersede",
    "note", "use", "snapshot", "equip", "unknown", "replace", "aside", "open",
    "unreadable", "memory", "branch", "branch", "branch_end", "branch_end", "prioritise", "steer",
)  # fmt: skip


def log_of(
    seed: int, dialect: Dialect, turns: int, steps: int, kinds: tuple[str, ...]
) -> tuple[Dialect, list[Event]]:
    """Return a log of a conversation with random facts of other kinds in between."""
    rng = Random(seed)
    story = write_script(make_script(seed, turns, steps, 20), dialect)
    log: list[Event] = []
    for chunk in wire_for(dialect).read(story.messages):
        for fact in chunk.facts:
            log.append(Event(len(log), fact))
            while rng.random() < 0.3:
                extra = _random_fact(rng, rng.choice(kinds), log)
                if extra is not None:
                    log.append(Event(len(log), extra))
    return dialect, log


def logs(*, kinds: tuple[str, ...] = _FACT_KINDS) -> st.SearchStrategy[tuple[Dialect, list[Event]]]:
    seed, dialect = st.integers(0, 2**32), st.sampled_from(DIALECTS)
    return st.builds(log_of, seed, dialect, st.integers(1, 3), st.integers(0, 4), st.just(kinds))


def _random_fact(rng: Random, wanted: str, log: list[Event]) -> AnyFact | None:
    def some(*kinds: type) -> Event | None:
        found = [event for event in log if isinstance(event.fact, kinds)]
        return rng.choice(found) if found else None

    last = len(log) - 1
    first = rng.randint(0, last)
    match wanted:
        case "mask":
            return _random_mask(some(ToolReturned, ModelSaid, UserSaid))
        case "clip":
            return _random_clip(rng, some(ToolReturned))
        case "drop":
            return Dropped(ranges=((first, rng.randint(first, last)),), reason="budget", rule="test")
        case "compact":
            return Compacted(first=first, last=rng.randint(first, last), summary="In short: …", by="ledger")
        case "revert":
            event = some(*PREFIX_MOVERS, Pinned, Clipped, Prioritised)
            return Reverted(target=event.seq) if event else None
        case "rewind":
            return Rewound(to=first, keep_reductions=rng.random() < 0.5)
        case "pin":
            return Pinned(text=f"never touch file {last}")
        case "pin_event":
            return Pinned(target=first)
        case "pin_whole":
            return Pinned(target=first, whole=True)
        case "supersede":
            old, new = some(UserSaid, Pinned), some(UserSaid)
            is_later = old is not None and new is not None and old.seq < new.seq
            return Superseded(target=old.seq, by=new.seq) if old and new and is_later else None
        case "prioritise":
            event = some(UserSaid, ModelSaid, ToolReturned)
            return Prioritised(target=event.seq, priority=rng.choice(("low", "high"))) if event else None
        case "steer":
            return Steered(by="user", focus=rng.choice(("", "the parser")))
        case "note":
            return Noted(text="for people")
        case "use":
            return Used(input=100, cache_read=50, output=7, units=140)
        case "snapshot":
            return SnapshotTaken(data=raw({"commit": "abc"}), label="git")
        case "equip":
            return Equipped(tools=raw([{"name": f"tool_{last}"}]))
        case "replace":
            event = some(Instructed)
            fact = event.fact if event else None
            keep = isinstance(fact, Instructed) and not fact.aside and not fact.is_memory
            return Instructed(content="the new rules", replaces=event.seq) if event and keep else None
        case "aside":
            return Instructed(content="beside", aside=True, source=rng.choice(("", "AGENTS.md")))
        case "memory":
            return Instructed(content=rng.choice(("", "I use tabs.", f"Item {last}.")), source=MEMORY_SOURCE)
        case "unreadable":
            event = some(ForeignSummary)
            return _random_record(rng, event.seq) if event else None
        case "branch":
            return Branched(task="Find the bug.", is_joined=rng.random() < 0.2)
        case "branch_end":
            return _random_branch_end(rng, some(Branched), last)
        case "open":
            return Opened(model="other", policy="economy")
        case _:
            return Unknown(kind="dreamt", raw=raw({"kind": "dreamt", "of": "😴"}), version=2)


def _random_branch_end(rng: Random, began: Event | None, last: int) -> AnyFact | None:
    """Return the end of a branch, or a fold without it: a rewind may have taken the end back."""
    if began is None:
        return None
    if rng.random() < 0.3:
        return BranchEnded(branch=began.seq, result="It is fixed.")
    keep = (rng.randint(began.seq, last),) if rng.random() < 0.3 else ()
    return Compacted(
        first=began.seq, last=last, summary="Fixed.", by=BRANCH, keep=keep, chunks=("Fixed.",), reason=BRANCH
    )


def _random_record(rng: Random, seq: int) -> Compacted:
    """Return what takes the place of a provider's summary."""
    text, messages = rng.choice((("", 0), ("Nothing is known.", 0), ("In the log: …", seq)))
    return Compacted(
        first=seq,
        last=seq,
        summary=text,
        by="ledger",
        reason=UNREADABLE,
        written_from=((0, messages),) if messages else (),
    )


def _random_mask(event: Event | None) -> Masked | None:
    if event is None:
        return None
    whole = Mask(target=event.seq, text=f"[masked; whole text: {handle(event.seq)}]")
    if isinstance(event.fact, ToolReturned):
        return Masked(masks=(whole,), reason="budget", rule="test")
    content = getattr(event.fact, "content", "")
    for place, part in enumerate(content if isinstance(content, tuple) else ()):
        if isinstance(part, Call):
            text = json.dumps({"command": whole.text})
            return Masked(masks=(Mask(target=event.seq, text=text, part=place),), rule="test")
    return None


def _random_clip(rng: Random, event: Event | None) -> Clipped | None:
    if event is None or not isinstance(event.fact, ToolReturned):
        return None
    content = event.fact.content
    part = -1
    text = content if isinstance(content, str) else ""
    if not isinstance(content, str):
        if not content or not isinstance(content[0], Text):
            return None
        part, text = 0, content[0].text
    end = rng.randint(0, len(text))
    marker = f"[cut; whole text: {handle(event.seq)}]"
    return Clipped(target=event.seq, pieces=((0, end), marker), part=part, strategy="head", rule="test")


# ── Plain conversations for single cases ─────────────────────────────────────────────────────────────────


def call_message(call_id: str, name: str = "bash", **arguments: Any) -> Json:
    """Return an assistant message with one tool call."""
    function = {"name": name, "arguments": json.dumps(arguments or {"command": f"run {call_id}"})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result_message(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def result(number: int, words: int = 200) -> str:
    """Return the text of a result with names that occur in no other result."""
    return "\n".join(
        f"line {n} of /srv/data_{number}/file_{number}_{n}.txt has words" for n in range(words // 10)
    )


def session(results: int, words: int = 200, task: str = "Find the bug in the parser, please.") -> list[Json]:
    """Return a chat history with one task and many tool calls."""
    messages = [{"role": "system", "content": "You are careful."}, user(task)]
    for number in range(results):
        messages += [call_message(f"c{number}"), result_message(f"c{number}", result(number, words))]
    return messages


def masks(log: Any) -> list[Mask]:
    return [mask for event in log if isinstance(event.fact, Masked) for mask in event.fact.masks]


def events_of(log: Any, *kinds: type) -> list[Event]:
    """Return the events of the given kinds."""
    return [event for event in log if isinstance(event.fact, kinds)]
