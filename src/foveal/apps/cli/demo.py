"""Replays a recorded conversation of a coding agent through the engine, in a window that is much too small for it.

    python -m foveal.apps.cli.demo [--window 8000] [--policy economy] [--fast]

No model is called and nothing leaves the machine: the recording lies beside this file. Each request that the
agent had sent is fitted again; one line shows how full it is, the lines under it what was reduced to get there.
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
from foveal.core.engine.report import EventStatus, usage_line
from foveal.core.log.events import Clipped, Masked

MODEL = "gpt-4.1"
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
Message = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status is 0, 1 when the window is too small, 2 for a bad setting."""
    chosen = _options(arguments)
    paper = DemoOutput(delay=chosen.delay)
    try:
        _play(recording(), chosen, paper)
    except ContextOverflow as problem:
        paper.write(textwrap.fill(f"ContextOverflow: {problem}", paper.width), "red")
        paper.write(f"The smallest request possible here has {problem.floor:,} tokens.")
        return 1
    except BadSetting as problem:
        print(f"foveal: {problem}", file=sys.stderr)
        return 2
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m foveal.apps.cli.demo",
        description="A recorded conversation in a window too small for it.",
    )
    parser.add_argument("--window", type=int, default=8_000, help="tokens (default: 8000)")
    parser.add_argument(
        "--policy", default="economy", help="economy, rolling, recent or off (default: economy)"
    )
    parser.add_argument("--delay", type=float, help="seconds between requests (default: 0.2 in a terminal)")
    parser.add_argument("--fast", action="store_const", const=0.0, dest="delay", help="do not wait")
    chosen = parser.parse_args(arguments)
    if chosen.delay is None:
        chosen.delay = 0.2 if sys.stdout.isatty() else 0.0
    return chosen


def recording() -> list[Message]:
    """The conversation, as messages of the OpenAI chat dialect."""
    text = resources.files("foveal.apps.cli").joinpath("recorded.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# ── playing ──────────────────────────────────────────────────────────────────────────────────────────────


class DemoRequest(NamedTuple):
    """One request of the recording, as it would be sent now."""

    turn: int
    asked: str
    """The user's words, if this request is the first of its turn."""
    before: Report
    """With the new messages, before anything was reduced."""
    after: Report
    made: Sequence[Event]
    """What was recorded for it, clips and reductions among it."""
    messages: list[Message]


def replay(ctx: Context, recorded: Sequence[Message]) -> Iterator[DemoRequest]:
    """Give the recording to a context, message by message, and fit each request that the agent had sent."""
    turn, asked, seen = 0, "", 0
    for message in recorded:
        if message["role"] == "user":
            turn, asked = turn + 1, message["content"]
        if message["role"] == "assistant":
            before, fitted = ctx.report(), ctx.fit()
            yield DemoRequest(turn, asked, before, ctx.report(), ctx.log[seen:], fitted)
            asked, seen = "", len(ctx.log)
        ctx.append(message)


def _play(recorded: Sequence[Message], chosen: argparse.Namespace, paper: DemoOutput) -> None:
    ctx = Context(MODEL, window=chosen.window, policy=chosen.policy, clock=None)
    _banner(recorded, ctx.report(), paper)
    last: DemoRequest | None = None
    for last in replay(ctx, recorded):
        if last.asked:
            paper.write(f"\nturn {last.turn}: {paper.cut(last.asked, taken=8)}", "bold")
        state = {"ok": "green", "warn": "yellow"}.get(last.after.state, "red")
        paper.write(f"{last.after.calls:>3}  {_aligned(usage_line(last.after))}", state)
        for told in reductions(last):
            paper.write(paper.cut(f"     └ {told}"), "dim")
        time.sleep(chosen.delay)
    if last is not None:
        _ending(ctx, recorded, last, paper)


def _aligned(line: str) -> str:
    """A usage line whose bar stands under that of the line before."""
    numbers, bar, rest = line.partition("▕")
    return f"{numbers:<24}{bar}{rest}"


def reductions(request: DemoRequest) -> Iterator[str]:
    """What was made smaller for a request, in words."""
    for event in request.made:
        if isinstance(event.fact, Clipped):
            fact = event.fact
            kept = f"{fact.total_tokens:,} → {fact.kept_tokens:,} tokens"
            yield f"clipped the result e{fact.target}: {kept}, {fact.strategy} ({event.handle})"
    done = [
        words
        for words in (_masked(request), _gone(request, "summarised"), _gone(request, "dropped"))
        if words
    ]
    if done:
        yield f"{', '.join(done)}: {request.before.used:,} → {request.after.used:,} tokens"


def _masked(request: DemoRequest) -> str:
    masks = [mask for event in request.made if isinstance(event.fact, Masked) for mask in event.fact.masks]
    results = sum(mask.part == -1 for mask in masks)
    parts = [_many(results, "result"), _many(len(masks) - results, "long argument")]
    return "masked " + " and ".join(filter(None, parts)) if masks else ""


def _gone(request: DemoRequest, level: str) -> str:
    pairs = zip(request.before.events, request.after.events, strict=False)
    gone = sum(old.level != new.level == level for old, new in pairs)
    return f"{level} {_many(gone, 'message')}" if gone else ""


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}" if count else ""


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────


class DemoOutput:
    """Where the lines go: plain text, with colours only in a terminal whose owner wants them."""

    def __init__(self, *, delay: float) -> None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        self.delay = delay
        wanted = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
        self.colours = wanted and not os.environ.get("NO_COLOR")
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100

    def write(self, text: str = "", style: str = "") -> None:
        if style and self.colours:
            line = text.lstrip("\n")
            text = f"{text.removesuffix(line)}\x1b[{STYLES[style]}m{line}\x1b[0m"
        print(text, flush=self.delay > 0)

    def cut(self, text: str, *, taken: int = 0) -> str:
        """Text on one line of the terminal."""
        room = max(20, self.width - taken)
        line = text if text.startswith(" ") else " ".join(text.split())
        return line if len(line) <= room else line[: room - 1] + "…"


def _banner(recorded: Sequence[Message], report: Report, paper: DemoOutput) -> None:
    calls = sum(message["role"] == "assistant" for message in recorded)
    tools = sum(message["role"] == "tool" for message in recorded)
    paper.write(
        f"Foveal on a recorded conversation: {calls} requests of a coding agent, {tools} tool calls.", "bold"
    )
    paper.write("No model is called: each recorded request is fitted again, into a window of")
    paper.write(
        f"{report.window:,} tokens ({report.limit:,} for the request), with the policy {report.policy!r}."
    )
    paper.write("Sizes are estimates: in a replay no provider reports what it has counted.")


def _ending(ctx: Context, recorded: Sequence[Message], last: DemoRequest, paper: DemoOutput) -> None:
    everything = Context(MODEL, window=10_000_000, policy="off", clock=None)
    everything.append(*recorded)
    paper.write("\nThe card after the last answer, print(ctx.report()):", "bold")
    paper.write(str(ctx.report()))
    paper.write("\nNothing is lost:", "bold")
    paper.write(
        f"  the conversation has {everything.report().used:,} tokens, the last request {last.after.used:,}"
    )
    rules = next(message["content"] for message in recorded if message["role"] == "user")
    if any(message.get("content") == rules for message in last.messages):
        paper.write("  the user's first message, with the rules, is in it word for word")
    _proof(ctx, recorded, paper)
    paper.write("\nNext: README.md has the three lines for your own loop, examples/ one idea per")
    paper.write("file, docs/design.md the design. Try --window 16000, or --policy rolling or off.")


def _proof(ctx: Context, recorded: Sequence[Message], paper: DemoOutput) -> None:
    results = [event for event in ctx.log if event.handle in _handles(ctx.report(), "tool_returned")]
    texts = [message["content"] for message in recorded if message["role"] == "tool"]
    same = sum(ctx.original(event.seq) == text for event, text in zip(results, texts, strict=True))
    paper.write(
        f"  {same} of {len(texts)} tool results in the log equal the recording, character by character"
    )
    reduced = [event for event in results if ctx.why(event.seq).level != "full"]
    if not reduced:
        return
    longest = max(reduced, key=lambda event: len(ctx.original(event.seq)))
    name, whole = longest.handle, ctx.original(longest.seq)
    lines = whole.splitlines()
    paper.write(f"\n>>> ctx.why({name!r})", "bold")
    paper.write(f"  {_why(ctx.why(name))}")
    paper.write(f">>> ctx.original({name!r})", "bold")
    for line in (
        lines[0],
        f"… {len(lines) - 3:,} more lines, {len(whole):,} characters in all …",
        *lines[-2:],
    ):
        paper.write(paper.cut(f"  {line}"), "dim")


def _handles(report: Report, kind: str) -> set[str]:
    return {line.handle for line in report.events if line.kind == kind}


def _why(line: EventStatus) -> str:
    return f"{line.kind}, {line.level} by {line.by} (rule: {line.rule}), {line.tokens:,} tokens in the next request"


if __name__ == "__main__":
    sys.exit(main())
