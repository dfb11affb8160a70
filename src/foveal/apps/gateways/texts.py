"""The texts that a chat is shown, as Markdown: the footer, the cards of the commands, and what went wrong.

1. All numbers are the report's own: what triggers, what the footer says and what a card says are the same number.
2. A card is told, never stored: it does not enter the conversation.
3. Nothing of a failure is passed on that could hold a secret: known sorts have a sentence of their own, and the
   rest is scrubbed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from foveal.core.compaction.health import measures
from foveal.core.compaction.summary_text import CODE
from foveal.core.engine.report import Report
from foveal.core.log.events import (
    Clipped,
    Compacted,
    Dropped,
    Event,
    Masked,
    ModelSaid,
    Reverted,
    UserSaid,
    parse_handle,
)
from foveal.core.models.cost import UsageTotals
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import Busy, FovealError, NotCompacted, ProviderError, StoreError
from foveal.server.live_session import LiveSession

# ── reductions ────────────────────────────────────────────────────────────────────────────────────
# What was summarised or left out since a chat was last answered, for its answer or in the background meanwhile.
#
# It is read from the log: between the last thing that was said before a turn and the last one that was said in it. So
# each reduction belongs to one answer, whichever process made it, and also after a crash.

BACK: Final = 64
"""Events before a turn that are looked at; there are few between two turns."""


async def reductions(room: LiveSession, said: str) -> list[Event]:
    """Those that the answer of a turn tells of; `said` is the handle of the first thing that was said in it. What
    somebody asked for, or took back, he knows."""
    seq = parse_handle(said)
    if seq is None:
        return []
    events = await room.events(first=max(0, seq - BACK))
    first, last = _between(events, seq)
    undone = {event.fact.target for event in events if isinstance(event.fact, Reverted)}
    return [
        event
        for event in events
        if first < event.seq < last
        and isinstance(event.fact, Compacted | Dropped)
        and event.fact.reason != "hand"
        and event.seq not in undone
    ]


def _between(events: list[Event], seq: int) -> tuple[int, int]:
    """The last thing that was said before a turn, and the last one that was said in it."""
    before, last = -1, seq
    for event in events:
        if isinstance(event.fact, UserSaid) and event.seq > seq:
            break  # the next turn
        if isinstance(event.fact, UserSaid | ModelSaid):
            before, last = (event.seq, last) if event.seq < seq else (before, event.seq)
    return before, last


# ── cards ─────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: Final = {
    "compact": "summarise old turns now; words behind it say what to keep above all",
    "context": "what fills the context window",
    "tokens": "tokens used so far, turns left, cost",
    "undo": "take back the newest summary or other reduction",
    "new": "begin a new conversation",
    "stop": "stop the answer that is being written",
    "help": "this list",
    "pair": "let this account talk to the bot",
}
"""The commands and what they do, in the order in which they are listed."""
BEHIND: Final = {"compact": " [words]", "pair": " CODE"}
"""What can be written behind some of them."""
BAR: Final = 10
EMPTY: Final = "Nothing has been said in this conversation yet."
SILENT: Final = "(The model gave an empty answer.)"
STOPPED: Final = "⏹ Stopped."
STEPS: Final = "⏹ That took as many steps as one answer may take. Say “go on” to go on."
BUSY: Final = "An answer is being written. Try again when it is there, or send /stop."
IDLE: Final = "No answer is being written."
PAIRED: Final = "You are paired: this account may talk to the bot from now on. /help lists the commands."
NOT_PAIRED: Final = "That code is not valid, or not any more. `foveal pair` on the server makes a new one."
TEXT_ONLY: Final = (
    "I read text only: no pictures, files, voice or stickers, and no edits of earlier messages."
)
OLD: Final = "That button is too old: there is nothing to do for it any more. /help lists the commands."
FAILED: Final = "❌ Something went wrong on the server; whoever runs it finds more in its log."
NOT_STORED: Final = "❌ Your message was not stored, please send it again"
PROVIDER_FAILURES: Final = {
    "key": "the model's provider does not accept the server's key; whoever runs the server must look at it",
    "rate": "the model's provider has too many requests right now",
    "connection": "the model's provider cannot be reached",
    "interrupted": "the connection to the model broke off",
    "server": "the model's provider has a problem of its own",
}
"""What to say of a provider's failure, by its sort; others are said in the provider's words, scrubbed."""


def stranger(face: str, user: int) -> str:
    """The only sentence that somebody hears who is not allowed."""
    return (
        f"This bot does not know you (your id is {user}): ask whoever runs it for a code from "
        f"`foveal pair {face}`, and send it as /pair CODE."
    )


def locked_out(face: str, user: int, *, seconds: float) -> str:
    """After too many wrong codes a right one does not help either."""
    minutes = max(1, math.ceil(seconds / 60))
    return (
        f"There were too many wrong codes: try again in {minutes} minute{'s' if minutes != 1 else ''}, or ask "
        f"whoever runs the bot to add your id ({user}) to `{face}.allowed`."
    )


def welcome() -> str:
    """The commands, and how it all works in two sentences."""
    listed = "\n".join(f"/{name}{BEHIND.get(name, '')} – {about}" for name, about in COMMANDS.items())
    return (
        "Write anything, and the model answers. The conversation can be as long as you like: old turns are "
        f"summarised when the context window fills up, and nothing is lost.\n\n{listed}"
    )


def unknown(word: str) -> str:
    return f"There is no command {one_line(word, width=40)}; /help lists those that there are."


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────


def share(report: Report) -> float:
    return report.used / report.window if report.window else 1.0


def footer(report: Report) -> str:
    return f"📊 Context: {report.used:,}/{report.window:,} ({share(report):.1%})"


def warning(report: Report) -> str:
    """What stands below an answer when the window gets full."""
    if report.question:
        return f"⚠️ The context is full: {report.used:,} of {report.limit:,} tokens. Summarise old turns?"
    if report.state == "warn":
        return f"⚠️ The context is getting full; old turns are summarised at {report.act:,} tokens."
    return "⚠️ The context is full; old turns are summarised before the next answer."


def context(report: Report) -> str:
    """What fills the window; the parts add up to it."""
    filled = min(BAR, max(round(share(report) * BAR), 1 if report.used else 0))
    lines = [f"▕{'█' * filled}{'·' * (BAR - filled)}▏ {share(report):.1%}"]
    parts = [(name, tokens) for name, tokens in report.totals.items() if tokens]
    lines += [_line(name, tokens, report.window) for name, tokens in parts]
    lines.append(_line("window", sum(tokens for _, tokens in parts), report.window))
    how = "measured" if report.measured else "estimated"
    below = [
        f"Used: {report.used:,} tokens ({how}), at most {report.limit:,}. A warning comes at {report.warn:,}, "
        f"and old turns are made smaller from {report.act:,} on.",
        *_summaries(report),
    ]
    return "\n".join([f"{footer(report)} · {report.model}", "```", *lines, "```", *below])


def _line(name: str, tokens: int, window: int) -> str:
    return f"{name:<12} {tokens:>9,} {tokens / max(1, window):>6.1%}"


def _summaries(report: Report) -> Iterable[str]:
    count = len(report.summaries)
    if count:
        many = "One summary stands" if count == 1 else f"{count:,} summaries stand"
        yield f"{many} for older turns; /undo takes back the newest reduction."


def tokens(report: Report, accounts: UsageTotals) -> str:
    how = "measured" if report.measured else "estimated"
    left = "not known yet" if report.turns_left is None else f"about {report.turns_left:,}"
    lines = [
        footer(report),
        f"Next request: {report.used:,} tokens ({how})",
        f"Turns: {report.turns:,} so far, {left} until old turns are reduced",
        f"Calls: {accounts.calls:,} · read {_read(accounts):,} tokens ({_cached(accounts):.0%} from the cache) · "
        f"written {accounts.output:,}",
        f"Cost: {_dollars(report.spent)}{_saved(report.saved)}",
    ]
    return "\n".join(lines)


def _read(accounts: UsageTotals) -> int:
    return accounts.input + accounts.cache_read + accounts.cache_write


def _cached(accounts: UsageTotals) -> float:
    return accounts.cache_read / max(1, _read(accounts))


def _dollars(amount: float | None) -> str:
    if amount is None:
        return "not known: this model has no price"
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"


def _saved(amount: float | None) -> str:
    """Caching can also cost a little more than it saves, at first: then there is nothing to tell."""
    return f", saved {_dollars(amount)}" if amount and amount >= 0.0001 else ""


# ── reductions ───────────────────────────────────────────────────────────────────────────────────────────


def compacted(event: Event, *, before: int, after: int) -> str:
    """What /compact has done."""
    saved = before - after
    part = f" ({saved / before:.0%} less)" if before and saved > 0 else ""
    return f"🗜 Summarised{_author(event)}: {before:,} → {after:,} tokens{part}. /undo takes it back."


def _author(event: Event) -> str:
    fact = event.fact
    if not isinstance(fact, Compacted) or not fact.by:
        return ""
    if fact.by != CODE:
        return f" by {fact.by}"
    why = " (the model's text did not pass the checks)" if measures(fact).asked else ""
    return f" by code alone{why}"


def unneeded(report: Report) -> str:
    """What an old button answers."""
    return f"That is not needed any more. {footer(report)}. /compact does it all the same."


def undone(event: Event) -> str:
    names = {Clipped: "a clipped result", Compacted: "a summary", Dropped: "a cut", Masked: "placeholders"}
    what = names.get(type(event.fact), "a reduction")
    return f"↩️ Took back {what} ({event.handle}): what it had hidden is shown to the model again."


def not_undone(name: str) -> str:
    """There is nothing for /undo to do."""
    if name:
        return (
            f"There is nothing named {one_line(name, width=40)} to take back; /undo alone takes the newest."
        )
    return "There is nothing to take back: the model sees this conversation as it was said."


def reduced(events: Iterable[Event]) -> list[str]:
    """What was done to make room for this answer, as far as somebody who chats cares about it."""
    told = []
    for event in events:
        if isinstance(event.fact, Compacted):
            sizes = measures(event.fact)
            told.append(
                f"🗜 Older turns were summarised: {sizes.before:,} → {sizes.after:,} tokens. /undo takes it back."
            )
        elif isinstance(event.fact, Dropped):
            told.append("✂️ Older turns were left out of view to make room. /undo takes it back.")
    return told


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


def failure(problem: FovealError) -> str:
    """An error of ours, in words for somebody who chats."""
    if isinstance(problem, Busy):
        return BUSY
    if isinstance(problem, NotCompacted):
        return f"Nothing was summarised: {_told(problem.problem)}."
    return f"❌ That did not work: {_why(problem)}."


def not_stored(problem: FovealError) -> str:
    return f"{NOT_STORED}: {_why(problem)}."


def _why(problem: FovealError) -> str:
    if isinstance(problem, StoreError):
        return f"the server's store has a problem ({_told(str(problem))})"
    code = problem.code if isinstance(problem, ProviderError) else ""
    return PROVIDER_FAILURES.get(code) or _told(str(problem))


def later(problem: str) -> str:
    """The answer is still to come."""
    told = _told(problem)
    return f"⏳ {told[:1].upper()}{told[1:]}."


def failed(problem: str, *, code: str) -> str:
    """A turn that came to nothing."""
    why = PROVIDER_FAILURES.get(code) or _told(problem)
    return f"❌ No answer: {why}." if why else "❌ No answer."


def _told(problem: str) -> str:
    return one_line(scrub(problem), width=400).rstrip(".")
