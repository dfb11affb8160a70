"""Conversations as agents have them, drawn by Hypothesis, and helpers to run them through a `Context`.

A `Tale` is told in no dialect: beats of users, models and tools, with the defects that real logs have (missing,
orphaned, late and repeated results, repeated ids, empty messages, null content, system text in the middle,
pictures, very long results). `told` puts it into a dialect. A loop calls `fit` before each utterance of the model,
so a tale also says at which lengths of the history that is.

Hypothesis draws a seed and sizes, and a small generator does the rest: a hundred draws a conversation would take
longer than what is tested. Shrinking makes conversations shorter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import strategies as st

import foveal
from foveal import Context
from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dialect,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
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
from foveal.core.models import Model
from foveal.core.tokens import PER_MESSAGE, Counter, Estimate, MessageTokens
from foveal.core.view import View, render_view
from foveal.core.view.fold import fold
from foveal.core.wire import measure_media, wire_for
from support.legality import check_anthropic, check_chat, check_responses

DIALECTS: Final[tuple[Dialect, ...]] = ("openai_chat", "openai_responses", "anthropic")
CHECKS: Final = {
    "openai_chat": check_chat,
    "openai_responses": check_responses,
    "anthropic": check_anthropic,
}
MOVERS: Final = (Masked, Dropped, Compacted, Reverted, Rewound)
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
ESTIMATE: Final = Estimate()
Json = dict[str, Any]


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────

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
SHORT: Final = (
    "ok", "", " ", "Please go on.", "好的，继续。", "🙂", "exit code 1", "done\n",
    "[foveal: 3 older messages are not shown]",
)  # fmt: skip


def short_text(dice: Random) -> str:
    if dice.random() < 0.7:
        return dice.choice(SHORT)
    return "".join(
        chr(dice.choice((dice.randrange(32, 127), dice.randrange(0x20, 0xD7FF)))) for _ in range(12)
    )


def long_text(dice: Random, most: int = 60) -> str:
    """One line many times, sometimes with its number in it."""
    line, times = dice.choice(_LINES), dice.randint(1, most)
    return "".join(f"{n} {line}" for n in range(times)) if dice.random() < 0.5 else line * times


def text(dice: Random) -> str:
    return short_text(dice) if dice.random() < 0.6 else long_text(dice, 12)


# ── a tale ───────────────────────────────────────────────────────────────────────────────────────────────


class Heard(NamedTuple):
    """The user or the system says something; `parts` where it is a list, with a picture if `picture`."""

    who: str
    text: str
    listed: bool = False
    picture: bool = False


class Spoken(NamedTuple):
    text: str | None
    calls: tuple[tuple[str, str, Json], ...] = ()
    listed: bool = False
    thought: bool = False


class Returned(NamedTuple):
    call_id: str
    text: str
    listed: bool = False
    failed: bool = False
    late: bool = False
    """It does not directly follow its call, or answers it a second time."""


Beat = Heard | Spoken | Returned
Tale = list[Beat]

NAMES: Final = ("bash", "read_file", "search")


def tale(seed: int, turns: int, steps: int, longest: int) -> Tale:
    dice = Random(seed)
    beats: Tale = []
    if dice.random() < 0.5:
        beats.append(Heard("system", text(dice)))
    used: list[str] = []
    for turn in range(turns):
        if turn and dice.random() < 0.15:
            beats.append(Heard("system", text(dice)))
        beats.append(_user(dice, turn))
        if dice.random() < 0.1:
            beats.append(_user(dice, turn))
        for _ in range(dice.randint(0, steps)):
            _step(dice, beats, used, longest)
        if dice.random() < 0.8:
            beats.append(Spoken(text(dice), listed=dice.random() < 0.5))
    return beats


def _user(dice: Random, turn: int) -> Heard:
    words = text(dice)
    kind = dice.randint(0, 5)
    marked = f"question {turn}: {words}" if dice.random() < 0.8 else words
    return Heard("user", marked, listed=kind < 2, picture=kind == 0)


def _step(dice: Random, beats: Tale, used: list[str], longest: int) -> None:
    calls: list[tuple[str, str, Json]] = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        name = dice.choice(used) if used and dice.random() < 0.15 else f"call_{len(used)}"
        if name in [call[0] for call in calls]:
            continue
        used.append(name)
        value = long_text(dice, 30) if dice.random() < 0.2 else f"cat file_{len(used)}.py"
        calls.append((name, dice.choice(NAMES), {"command": value, "n": len(used)}))
    words = dice.choice((None, "", "Let me look.", "我看一下"))
    beats.append(Spoken(words, tuple(calls), thought=dice.random() < 0.2))
    order = dice.sample(calls, len(calls))
    defect = dice.randint(0, 14)
    for call in order if defect else ():  # 0: aborted, nothing came back
        most = 40 * longest if dice.random() < 0.04 else longest
        words = long_text(dice, most) if dice.random() < 0.4 else text(dice)
        beats.append(Returned(call[0], words, listed=dice.random() < 0.2, failed=dice.random() < 0.1))
    if defect == 1:
        beats.append(Returned(f"nobody_{len(used)}", "an orphan", late=True))
    if defect == 2:
        beats.append(Returned(calls[0][0], "the same again", late=True))
    if defect == 3 and len(order) > 1:
        late = beats.pop()
        assert isinstance(late, Returned)
        beats += [Heard("user", "are you still there?"), late._replace(late=True)]


def tales(*, turns: int = 4, steps: int = 4, longest: int = 120) -> st.SearchStrategy[Tale]:
    return st.builds(
        tale, st.integers(0, 2**32), st.integers(1, turns), st.integers(0, steps), st.integers(1, longest)
    )


# ── a tale in a dialect ──────────────────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    dialect: Dialect
    messages: list[Json]
    calls: list[int]
    """Lengths of the history at which a loop asks the model."""
    late: list[int]
    """Messages that hold a late result."""
    tale: Tale
    ends: list[int]
    """For each beat, the length of the history after it."""


def told(tale: Tale, dialect: Dialect) -> Told:
    messages: list[Json] = []
    calls: list[int] = []
    late: list[int] = []
    ends: list[int] = []
    for beat in tale:
        if isinstance(beat, Spoken) and messages and (not calls or calls[-1] < len(messages)):
            calls.append(len(messages))
        if isinstance(beat, Returned) and beat.late:
            late.append(len(messages))
        messages += _WRITERS[dialect](beat)
        ends.append(len(messages))
    if messages and (not calls or calls[-1] < len(messages)):
        calls.append(len(messages))
    return Told(dialect, messages, calls, late, tale, ends)


def _chat(beat: Beat) -> list[Json]:
    match beat:
        case Heard():
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
            parts: list[Json] = [{"type": "text", "text": beat.text}] + [picture] * beat.picture
            return [{"role": beat.who, "content": parts if beat.listed else beat.text}]
        case Spoken():
            listed = beat.listed and beat.text
            message: Json = {"role": "assistant", "content": beat.text}
            if listed:
                message["content"] = [{"type": "text", "text": beat.text}]
            if beat.calls:
                message["tool_calls"] = [
                    {
                        "id": c[0],
                        "type": "function",
                        "function": {"name": c[1], "arguments": json.dumps(c[2])},
                    }
                    for c in beat.calls
                ]
            return [message]
        case Returned():
            content = [{"type": "text", "text": beat.text}] if beat.listed else beat.text
            return [{"role": "tool", "tool_call_id": beat.call_id, "content": content}]


def _responses(beat: Beat) -> list[Json]:
    match beat:
        case Heard():
            picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
            parts: list[Json] = [{"type": "input_text", "text": beat.text}] + [picture] * beat.picture
            return [{"role": beat.who, "content": parts if beat.listed else beat.text}]
        case Spoken():
            items: list[Json] = []
            if beat.thought and (beat.text or beat.calls):
                items.append({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"})
            if beat.text or not beat.calls:
                content: Any = beat.text or ""
                if beat.listed:
                    content = [{"type": "output_text", "text": beat.text or "", "annotations": []}]
                items.append({"role": "assistant", "content": content})
            items += [
                {"type": "function_call", "call_id": c[0], "name": c[1], "arguments": json.dumps(c[2])}
                for c in beat.calls
            ]
            return items
        case Returned():
            output = [{"type": "input_text", "text": beat.text}] if beat.listed else beat.text
            return [{"type": "function_call_output", "call_id": beat.call_id, "output": output}]


def _anthropic(beat: Beat) -> list[Json]:
    match beat:
        case Heard():
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            picture = {"type": "image", "source": source}
            parts: list[Json] = [{"type": "text", "text": beat.text}] + [picture] * beat.picture
            return [{"role": beat.who, "content": parts if beat.listed else beat.text}]
        case Spoken():
            blocks: list[Json] = []
            if beat.thought:
                blocks.append({"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"})
            if beat.text:
                blocks.append({"type": "text", "text": beat.text})
            for c in beat.calls:
                blocks.append({"type": "tool_use", "id": c[0], "name": c[1], "input": c[2]})
            plain = not beat.calls and not beat.thought and not beat.listed
            return [{"role": "assistant", "content": (beat.text or "") if plain else blocks}]
        case Returned():
            content: Any = [{"type": "text", "text": beat.text}] if beat.listed else beat.text
            block: Json = {"type": "tool_result", "tool_use_id": beat.call_id, "content": content}
            if beat.failed:
                block["is_error"] = True
            return [{"role": "user", "content": [block]}]


_WRITERS: Final = {"openai_chat": _chat, "openai_responses": _responses, "anthropic": _anthropic}


def stories(**how: int) -> st.SearchStrategy[Told]:
    return st.builds(told, tales(**how), st.sampled_from(DIALECTS))


# ── settings to run them with ────────────────────────────────────────────────────────────────────────────

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
    {"preset": "economy", "keep_last": 1, "target": 0.3, "early": 0.4, "patience": 50.0},
    {"preset": "recent", "target": 0.5, "act": 1.0},
)
WINDOWS: Final = (700, 1_500, 3_000, 8_000, 40_000)


def plain_model(window: int, **known: Any) -> Model:
    """A model that nobody knows, so that a token is a unit."""
    return foveal.model("somebody/unheard-of", window=window, **known)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def context(window: int = 8_000, policy: Any = "economy", **how: Any) -> Context:
    """A context that counts with the estimate and whose clock stands still."""
    how.setdefault("tokenizer", ESTIMATE)
    how.setdefault("clock", Clock())
    how.setdefault("reserve", window // 10)
    return Context(plain_model(window), policy=policy, **how)


TOOLS: Final[dict[str, list[Json]]] = {
    "openai_chat": [{"type": "function", "function": {"name": "bash", "description": "run " * 40}}],
    "openai_responses": [{"type": "function", "name": "bash", "description": "run " * 40}],
    "anthropic": [{"name": "bash", "description": "run " * 40, "input_schema": {"type": "object"}}],
}


# ── requests, looked at without the code under test ──────────────────────────────────────────────────────


def wire_bytes(messages: list[Json]) -> bytes:
    return json.dumps(messages, ensure_ascii=True, sort_keys=False).encode()


def flat(messages: list[Json]) -> list[tuple[str, str]]:
    """A request as a line of (role, piece); the Anthropic way of merging neighbours does not show."""
    pieces: list[tuple[str, str]] = []
    for message in messages:
        role = message.get("role") or message.get("type")
        content = message.get("content")
        if isinstance(content, list) and set(message) == {"role", "content"}:
            pieces += [(role, json.dumps(part)) for part in content]
        elif isinstance(content, str) and set(message) == {"role", "content"}:
            pieces.append((role, json.dumps({"type": "text", "text": content})))
        else:
            pieces.append((role, json.dumps(message)))
    return pieces


def strings(value: Any) -> Iterator[str]:
    """All texts in a request; arguments that a dialect sends as an object, as the text of that object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from [json.dumps(item)] if key == "input" and isinstance(item, dict) else strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def recount(messages: list[Json], counter: Counter = ESTIMATE) -> int:
    """Units of a request by what stands in it: texts, arguments, pictures."""
    return sum(_recount(message, counter) for message in messages)


def _recount(message: Json, counter: Counter) -> int:
    units = PER_MESSAGE if message.get("type") not in ("function_call", "reasoning") else 0
    for call in message.get("tool_calls") or ():
        units += counter.count(call["function"]["name"]) + counter.count(call["function"]["arguments"])
    if message.get("type") == "function_call":
        units += counter.count(message["name"]) + counter.count(message["arguments"])
    for field in ("content", "output"):
        units += _recount_content(message.get(field), counter)
    return units


def _recount_content(content: Any, counter: Counter) -> int:
    if isinstance(content, str):
        return counter.count(content)
    units = 0
    for part in content or ():
        if part["type"] in ("image", "image_url", "input_image"):
            units += measure_media(part).units
        elif part["type"] == "tool_use":
            given = msgspec.json.encode(part["input"]).decode()
            units += counter.count(part["name"]) + counter.count(given)
        elif part["type"] == "tool_result":
            units += _recount_content(part.get("content"), counter)
        else:
            units += counter.count(part.get("text", ""))
    return units


# ── the log again ────────────────────────────────────────────────────────────────────────────────────────


def reread(log: tuple[Event, ...] | list[Event]) -> list[Event]:
    """A log as it comes back from lines of JSON."""
    return [decode(line) for line in b"\n".join(map(encode, log)).split(b"\n")]


def rendered(log: Any, dialect: Dialect, counter: Counter = ESTIMATE) -> list[Json]:
    return render_view(fold(list(log), MessageTokens(counter)), wire_for(dialect))[0]


def described(view: View) -> tuple[Any, ...]:
    """All that a view is, in one comparable value."""
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
        (view.result_count, view.turn_count, view.dropped_messages, view.tools),
    )


# ── logs with every kind of fact ─────────────────────────────────────────────────────────────────────────

_KINDS: Final = (
    "mask", "mask", "clip", "drop", "compact", "revert", "rewind", "pin", "pin_event", "note", "use", "snapshot",
    "equip", "unknown", "replace", "aside", "open",
)  # fmt: skip


def log_of(
    seed: int, dialect: Dialect, turns: int, steps: int, kinds: tuple[str, ...]
) -> tuple[Dialect, list[Event]]:
    """A conversation with facts of other kinds strewn in."""
    dice = Random(seed)
    story = told(tale(seed, turns, steps, 20), dialect)
    log: list[Event] = []
    for chunk in wire_for(dialect).read(story.messages):
        for fact in chunk.facts:
            log.append(Event(len(log), fact))
            while dice.random() < 0.3:
                extra = _strewn(dice, dice.choice(kinds), log)
                if extra is not None:
                    log.append(Event(len(log), extra))
    return dialect, log


def logs(*, kinds: tuple[str, ...] = _KINDS) -> st.SearchStrategy[tuple[Dialect, list[Event]]]:
    seed, dialect = st.integers(0, 2**32), st.sampled_from(DIALECTS)
    return st.builds(log_of, seed, dialect, st.integers(1, 3), st.integers(0, 4), st.just(kinds))


def _strewn(dice: Random, wanted: str, log: list[Event]) -> AnyFact | None:
    def some(*kinds: type) -> Event | None:
        found = [event for event in log if isinstance(event.fact, kinds)]
        return dice.choice(found) if found else None

    last = len(log) - 1
    first = dice.randint(0, last)
    match wanted:
        case "mask":
            return _masked(some(ToolReturned, ModelSaid, UserSaid))
        case "clip":
            return _clipped(dice, some(ToolReturned))
        case "drop":
            return Dropped(ranges=((first, dice.randint(first, last)),), reason="budget", rule="test")
        case "compact":
            return Compacted(first=first, last=dice.randint(first, last), summary="In short: …", by="ledger")
        case "revert":
            event = some(*MOVERS, Pinned, Clipped)
            return Reverted(target=event.seq) if event else None
        case "rewind":
            return Rewound(to=first, keep_reductions=dice.random() < 0.5)
        case "pin":
            return Pinned(text=f"never touch file {last}")
        case "pin_event":
            return Pinned(target=first)
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
            keep = event and isinstance(event.fact, Instructed) and not event.fact.aside
            return Instructed(content="the new rules", replaces=event.seq) if event and keep else None
        case "aside":
            return Instructed(content="beside", aside=True, source=dice.choice(("", "AGENTS.md")))
        case "open":
            return Opened(model="other", policy="economy")
        case _:
            return Unknown(kind="dreamt", raw=raw({"kind": "dreamt", "of": "😴"}), version=2)


def _masked(event: Event | None) -> Masked | None:
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


def _clipped(dice: Random, event: Event | None) -> Clipped | None:
    if event is None or not isinstance(event.fact, ToolReturned):
        return None
    content = event.fact.content
    part = -1
    text = content if isinstance(content, str) else ""
    if not isinstance(content, str):
        if not content or not isinstance(content[0], Text):
            return None
        part, text = 0, content[0].text
    end = dice.randint(0, len(text))
    marker = f"[cut; whole text: {handle(event.seq)}]"
    return Clipped(target=event.seq, pieces=((0, end), marker), part=part, strategy="head", rule="test")


# ── plain conversations for single cases ─────────────────────────────────────────────────────────────────


def asked(call_id: str, name: str = "bash", **arguments: Any) -> Json:
    """An assistant that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments or {"command": f"run {call_id}"})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def answered(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def result(number: int, words: int = 200) -> str:
    """A result with names that stand in no other."""
    return "\n".join(
        f"line {n} of /srv/data_{number}/file_{number}_{n}.txt has words" for n in range(words // 10)
    )


def session(results: int, words: int = 200, task: str = "Find the bug in the parser, please.") -> list[Json]:
    """One task and many tool calls."""
    messages = [{"role": "system", "content": "You are careful."}, user(task)]
    for number in range(results):
        messages += [asked(f"c{number}"), answered(f"c{number}", result(number, words))]
    return messages


def masks(log: Any) -> list[Mask]:
    return [mask for event in log if isinstance(event.fact, Masked) for mask in event.fact.masks]


def of(log: Any, *kinds: type) -> list[Event]:
    """The events of some kinds."""
    return [event for event in log if isinstance(event.fact, kinds)]
