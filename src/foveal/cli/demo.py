"""The demo: a recorded conversation, replayed in a window too small for it.

    foveal demo [--window 8000] [--policy economy] [--fast]

No model is called and nothing leaves the machine: the recording is the file `recorded.jsonl` next to this one. The
demo fits each recorded request again; one line shows how full the window is, the lines below it what was reduced.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from foveal import BadSetting, Context, ContextOverflow, Event, Report
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.report import usage_line
from foveal.core.log.events import Clipped, Compacted, Masked, handle

DEMO_MODEL = "gpt-4.1"
ANSI_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
Message = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0, 1 when the window is too small, 2 for a bad setting."""
    chosen = _options(arguments)
    output = DemoOutput(delay=chosen.delay)
    try:
        _run(recording(), chosen, output)
    except ContextOverflow as problem:
        output.write(textwrap.fill(f"ContextOverflow: {problem}", output.width), "red")
        output.write(f"The smallest request possible here has {problem.floor:,} tokens.")
        return 1
    except BadSetting as problem:
        print(f"foveal: {problem}", file=sys.stderr)
        return 2
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="foveal demo",
        description="A recorded conversation in a window too small for it.",
    )
    parser.add_argument(
        "--window", type=int, default=8_000, help="context window of the demo, in tokens (default: 8000)"
    )
    parser.add_argument(
        "--policy",
        default="economy",
        help="policy that reduces: economy, rolling, recent or off (default: economy)",
    )
    parser.add_argument("--delay", type=float, help="seconds between requests (default: 0.2 in a terminal)")
    parser.add_argument("--fast", action="store_const", const=0.0, dest="delay", help="do not wait")
    chosen = parser.parse_args(arguments)
    if chosen.delay is None:
        chosen.delay = 0.2 if sys.stdout.isatty() else 0.0
    return chosen


def recording() -> list[Message]:
    """Return the recorded conversation as messages of the OpenAI chat dialect."""
    text = resources.files("foveal.cli").joinpath("recorded.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# ── Replay ───────────────────────────────────────────────────────────────────────────────────────────────


class DemoRequest(NamedTuple):
    """A recorded request, fitted again."""

    turn: int
    user_text: str
    """The user's message, if this request is the first of its turn, else ""."""
    before: Report
    """With the new messages, before any reduction."""
    after: Report
    events: Sequence[Event]
    """The events that fitting recorded, clips and reductions among them."""
    messages: list[Message]


def replay(ctx: Context, recorded: Sequence[Message]) -> Iterator[DemoRequest]:
    """Append the recording to a context, message by message, and yield each recorded request, fitted."""
    turn, user_text, seen = 0, "", 0
    for message in recorded:
        if message["role"] == "user":
            turn, user_text = turn + 1, message["content"]
        if message["role"] == "assistant":
            before, fitted = ctx.report(), ctx.fit()
            yield DemoRequest(turn, user_text, before, ctx.report(), ctx.log[seen:], fitted)
            user_text, seen = "", len(ctx.log)
        ctx.append(message)


def _run(recorded: Sequence[Message], chosen: argparse.Namespace, output: DemoOutput) -> None:
    ctx = Context(DEMO_MODEL, window=chosen.window, policy=chosen.policy, clock=None)
    _print_banner(recorded, ctx.report(), output)
    last: DemoRequest | None = None
    for last in replay(ctx, recorded):
        if last.user_text:
            output.write(f"\nturn {last.turn}: {output.cut(last.user_text, margin=8)}", "bold")
        state = {"ok": "green", "warn": "yellow"}.get(last.after.state, "red")
        output.write(f"{last.after.fitted:>3}  {_aligned(usage_line(last.after))}", state)
        for text in reduction_texts(last):
            output.write(output.cut(f"     └ {text}"), "dim")
        time.sleep(chosen.delay)
    if last is not None:
        _print_ending(ctx, recorded, last, output)


def _aligned(line: str) -> str:
    """Return a usage line, padded so that the bars of all lines begin in the same column."""
    numbers, bar, rest = line.partition("▕")
    return f"{numbers:<24}{bar}{rest}"


def reduction_texts(request: DemoRequest) -> Iterator[str]:
    """Yield the reductions made for a request, in words."""
    for event in request.events:
        if isinstance(event.fact, Clipped) and not event.fact.shows_all:
            fact = event.fact
            kept = f"{fact.total_tokens:,} → {fact.kept_tokens:,} tokens"
            yield f"clipped the result e{fact.target}: {kept}, {fact.strategy} ({event.handle})"
    texts = [
        text
        for text in (
            _masked_text(request),
            _level_text(request, "summarised"),
            _level_text(request, "dropped"),
        )
        if text
    ]
    if texts:
        yield f"{', '.join(texts)}: {request.before.used:,} → {request.after.used:,} tokens"


def _masked_text(request: DemoRequest) -> str:
    kinds = {event.handle: event.kind for event in request.after.events}
    masked = {
        handle(mask.target)
        for event in request.events
        if isinstance(event.fact, Masked | Compacted)
        for mask in event.fact.masks
    }
    results = sum(kinds.get(name) == "tool_returned" for name in masked)
    texts = [f"hid {_count(results, 'result')}"] if results else []
    if shortened := len(masked) - results:
        texts.append(f"shortened {_count(shortened, 'message')}")
    return ", ".join(texts)


def _level_text(request: DemoRequest, level: str) -> str:
    pairs = zip(request.before.events, request.after.events, strict=False)
    changed = sum(old.level != new.level == level for old, new in pairs)
    return f"{level} {_count(changed, 'message')}" if changed else ""


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}" if count else ""


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────


class DemoOutput:
    """Writes lines to standard output; colours only in a terminal (or with FORCE_COLOR) without NO_COLOR."""

    def __init__(self, *, delay: float) -> None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        self.delay = delay
        wanted = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
        self.colours: bool = wanted and not os.environ.get("NO_COLOR")
        self.width: int = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100

    def write(self, text: str = "", style: str = "") -> None:
        if style and self.colours:
            line = text.lstrip("\n")
            text = f"{text.removesuffix(line)}\x1b[{ANSI_CODES[style]}m{line}\x1b[0m"
        print(text, flush=self.delay > 0)

    def cut(self, text: str, *, margin: int = 0) -> str:
        """Return a text cut to one line of the terminal, `margin` columns shorter."""
        room = max(20, self.width - margin)
        line = text if text.startswith(" ") else " ".join(text.split())
        return line if len(line) <= room else line[: room - 1] + "…"


def _print_banner(recorded: Sequence[Message], report: Report, output: DemoOutput) -> None:
    calls = sum(message["role"] == "assistant" for message in recorded)
    tools = sum(message["role"] == "tool" for message in recorded)
    output.write(
        f"Foveal on a recorded conversation: {calls} requests of a coding agent, {tools} tool calls.", "bold"
    )
    output.write("No model is called: each recorded request is fitted again, into a window of")
    output.write(
        f"{report.window:,} tokens ({report.limit:,} for the request), with the policy {report.policy!r}."
    )
    output.write("Sizes are estimates: in a replay no provider reports what it has counted.")


def _print_ending(ctx: Context, recorded: Sequence[Message], last: DemoRequest, output: DemoOutput) -> None:
    everything = Context(DEMO_MODEL, window=10_000_000, policy="off", clock=None)
    everything.append(*recorded)
    output.write("\nThe card after the last answer, print(ctx.report()):", "bold")
    output.write(str(ctx.report()))
    output.write("\nNothing is lost:", "bold")
    output.write(
        f"  the conversation has {everything.report().used:,} tokens, the last request {last.after.used:,}"
    )
    rules = next(message["content"] for message in recorded if message["role"] == "user")
    if any(message.get("content") == rules for message in last.messages):
        output.write("  the user's first message, with the rules, is in it word for word")
    _print_proof(ctx, recorded, output)
    output.write("\nNext: README.md has the three lines for your own loop, examples/ one idea per")
    output.write(
        "file, docs/how-it-works/design.md the design. Try --window 16000, or --policy rolling or off."
    )


def _print_proof(ctx: Context, recorded: Sequence[Message], output: DemoOutput) -> None:
    """Print that the log still has every tool result, and the longest reduced result in full."""
    results = [event for event in ctx.log if event.handle in _handles(ctx.report(), "tool_returned")]
    texts = [message["content"] for message in recorded if message["role"] == "tool"]
    same = sum(ctx.original(event.seq) == text for event, text in zip(results, texts, strict=True))
    output.write(
        f"  {same} of {len(texts)} tool results in the log equal the recording, character by character"
    )
    reduced = [event for event in results if ctx.why(event.seq).level != "full"]
    if not reduced:
        return
    longest = max(reduced, key=lambda event: len(ctx.original(event.seq)))
    name, whole = longest.handle, ctx.original(longest.seq)
    lines = whole.splitlines()
    output.write(f"\n>>> ctx.why({name!r})", "bold")
    output.write(f"  {_status_text(ctx.why(name))}")
    output.write(f">>> ctx.original({name!r})", "bold")
    for line in (
        lines[0],
        f"… {len(lines) - 3:,} more lines, {len(whole):,} characters in all …",
        *lines[-2:],
    ):
        output.write(output.cut(f"  {line}"), "dim")


def _handles(report: Report, kind: str) -> set[str]:
    return {line.handle for line in report.events if line.kind == kind}


def _status_text(line: EventStatus) -> str:
    return f"{line.kind}, {line.level} by {line.by} (rule: {line.rule}), {line.tokens:,} tokens in the next request"


if __name__ == "__main__":
    sys.exit(main())
