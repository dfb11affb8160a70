"""Texts of the bots, as Markdown: footer, output of commands, errors.

1. All numbers come from the report: the footer and the commands show the numbers that trigger reductions.
2. The output of a command is sent and not stored: it does not enter the conversation.
3. No error text contains a secret: known errors have a sentence of their own, and the others are scrubbed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from foveal.core.compaction.health import is_by_model, read_metrics
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.report import Report, largest_part, over_limit_notice
from foveal.core.engine.user_statements import unseen
from foveal.core.log.events import (
    Clipped,
    Compacted,
    Dropped,
    Event,
    Masked,
    Rewound,
    Superseded,
    handle,
)
from foveal.core.models.cost import UsageTotals, cost_text
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import Busy, ContextOverflow, FovealError, NotCompacted, ProviderError, StoreError
from foveal.server.chat_records import ChatMessage

# ── Texts ──────────────────────────────────────────────────────────────────────────────────────────────

BOT_COMMANDS: Final = {
    "compact": "summarise old turns now; the words say what to keep above all",
    "context": "show what fills the context window",
    "tokens": "show tokens used so far, turns left, cost",
    "undo": "undo the newest summary or other reduction",
    "memory": "show what the bot remembers of you; words search it",
    "remember": "remember a statement of yours in all conversations",
    "forget": "forget an entry of the memory, by its id or its words",
    "new": "start a new conversation; record, summary or rules carries these over, a name chooses the agent",
    "stop": "stop the answer that is being written",
    "help": "list the commands",
    "pair": "pair this account with the bot",
}
"""Names and descriptions of the commands, in the order of the list."""
COMMAND_ARGUMENTS: Final = {
    "compact": " [words]",
    "memory": " [words]",
    "remember": " TEXT",
    "forget": " ID",
    "new": " [record] [agent]",
    "pair": " CODE",
}
BAR_CELLS: Final = 10
MAX_ERROR_CHARS: Final = 400
MAX_QUOTED_STATEMENTS: Final = 5
"""Statements that are shown nowhere, quoted by /context, the newest."""
MAX_QUOTED_STATEMENT_CHARS: Final = 120
MAX_UNDO_COMMANDS: Final = 3
"""Commands in the line about reductions of one kind."""
NO_MESSAGES: Final = "This conversation has no messages yet."
NEW_SESSION: Final = "🆕 A new conversation begins. The server keeps the old one."
CONTINUED_SESSION: Final = (
    "🆕 A new conversation begins, with the {carry} of the old one. The server keeps that one."
)
BAD_CARRY: Final = "/new starts afresh; /new record, /new summary and /new rules carry these over."
PROPOSALS: Final = "💡 You said things that I could remember: /memory shows them."
NEW_AGENT: Final = "The agent `{agent}` answers in it."
EMPTY_ANSWER: Final = "(The model gave an empty answer.)"
STOPPED: Final = "⏹ Stopped."
BUSY: Final = "An answer is being written. Try again when it has arrived, or send /stop."
AFTER_ANSWER: Final = "⏳ This comes after the answer that is being written."
IDLE: Final = "No answer is being written."
PAIRED: Final = "You are paired: the bot answers this account from now on. /help lists the commands."
NOT_PAIRED: Final = "That code is wrong or has expired. `foveal pair` on the server creates a new one."
DECLINED: Final = "Nothing was changed. You are asked again after the next answer."
TAKEN_OUT: Final = "↩️ Your message was taken out: the model does not see it. /undo brings it back."
NOT_TAKEN_OUT: Final = "The conversation has gone on since, so the message stays. /new starts without it."
OLD_BUTTON: Final = "That button is too old and no longer works. /help lists the commands."
INTERNAL_ERROR: Final = "❌ Something went wrong on the server; its log has the details."
NOT_STORED: Final = "❌ Your message was not stored, please send it again"
PROVIDER_FAILURES: Final = {
    "key": "the model's provider does not accept the server's API key; the operator of the server must fix it",
    "rate": "the model's provider has too many requests right now",
    "connection": "the model's provider cannot be reached",
    "interrupted": "the connection to the model was interrupted",
    "server": "the model's provider has an internal error",
}
"""Sentences for provider errors by their code; other errors are quoted, scrubbed."""

# ── Access and help ────────────────────────────────────────────────────────────────────────────────────


def no_access(platform: str, user: int) -> str:
    """Return the only reply to a user without access."""
    return (
        f"You do not have access to this bot (your id is {user}): ask its operator for a code from "
        f"`foveal pair {platform}`, and send it as /pair CODE."
    )


def locked_out(platform: str, user: int, *, seconds: float) -> str:
    """Return the reply after too many wrong codes, when a right code is not accepted either."""
    minutes = max(1, math.ceil(seconds / 60))
    return (
        f"There were too many wrong codes: try again in {minutes} minute{'s' if minutes != 1 else ''}, or ask "
        f"the bot's operator to add your id ({user}) to `{platform}.allowed`."
    )


def help_text() -> str:
    """Return a short introduction and the list of commands."""
    listed = "\n".join(
        f"/{name}{COMMAND_ARGUMENTS.get(name, '')} – {about}" for name, about in BOT_COMMANDS.items()
    )
    return (
        "Write anything, and the model answers. The conversation can be as long as you like: when the context "
        "window fills up, old turns are summarised, or you are asked first if the server is set up so. Nothing is "
        f"lost.\n\n{listed}"
    )


def unknown_command(word: str) -> str:
    return f"There is no command {one_line(word, width=40)}; /help lists the commands."


def scheduled(text: str, *, name: str) -> str:
    """Return an answer that a schedule asked for with the name of the schedule; "" for no schedule."""
    return f"⏰ `{name}`\n\n{text}" if name else text


def bad_new(agents: Sequence[str]) -> str:
    """Return the reply to /new with words that it does not know."""
    return f"{BAD_CARRY} /new NAME chooses an agent: {', '.join(agents)}." if agents else BAD_CARRY


def new_session(*, carry: str = "", agent: str = "", proposals: int = 0) -> str:
    """Return the reply to /new; `proposals` wait for the user's yes since the old conversation."""
    text = CONTINUED_SESSION.format(carry=carry) if carry else NEW_SESSION
    text = f"{text} {NEW_AGENT.format(agent=agent)}" if agent else text
    return f"{text}\n{PROPOSALS}" if proposals else text


def memory_note(text: str) -> str:
    """Return the line below an answer about what was remembered or forgotten."""
    return f"🧠 {text}"


def step_limit(problem: str) -> str:
    """Return the last line of an answer that has reached its limit of tool calls."""
    return f"⏹ The answer ends here: {problem or 'it has reached its limit'}. Say “go on” to continue."


def stopping(queued: int) -> str:
    """Return the reply to /stop; `queued` further messages wait for an answer."""
    more = f" Messages that still wait for an answer: {queued}." if queued > 0 else ""
    return f"Stopping.{more}"


# ── Usage ──────────────────────────────────────────────────────────────────────────────────────────────


SUBTEXT: Final = "-# "
"""Discord's mark of a small line; each line of a footer has it there."""
STATE_MARKS: Final = {"ok": "🟢", "warn": "🟡", "act": "🔴", "over": "🔴"}
"""Colours of the footer: yellow from the warning on, red when the next reduction or the question is due."""


def footer(report: Report) -> str:
    mark = STATE_MARKS[report.state]
    return f"{mark} Context: {report.used:,}/{report.window:,} ({report.percent(report.used)})"


def without_footer(text: str) -> str:
    """Return a message of the bot, as a chat app shows it, without its footer."""
    lines = text.rstrip().split("\n")
    while lines and lines[-1].startswith(SUBTEXT):  # all of the footer on Discord
        lines.pop()
    body, _, last = "\n".join(lines).rpartition("\n\n")
    starts = tuple(f"{mark} Context: " for mark in STATE_MARKS.values())
    has_footer = any(line.startswith(starts) for line in last.split("\n"))
    return (body if has_footer else "\n".join(lines)).rstrip() or text


def warning(report: Report) -> str:
    """Return the line below an answer when the window becomes full."""
    used, limit = report.percent(report.used), report.percent(report.limit)
    if report.mode == "confirm":
        act = report.percent(report.act)
        return f"⚠️ The context takes {used} of the window; from {act} on you are asked whether to compact it."
    if report.mode == "off":
        return f"⚠️ The context takes {used} of the window, and at most {limit} fit. /compact summarises old turns."
    if report.state == "over":
        return f"⚠️ The context is full: {_used_and_limit(report)}. Old turns are summarised before the next answer."
    # `act` is no promise: below it, a summary may be ready or a cut cheap; above it, a policy may wait for either.
    return f"⚠️ The context takes {used} of the window; old turns are summarised {_when_reduced(report)}."


def question(report: Report) -> list[str]:
    """Return the lines below an answer in mode `confirm` when the user is asked, with yes and no as buttons."""
    asked = f"⚠️ The context is full: {_used_and_limit(report)}. Compact the conversation now?"
    return [f"⏳ {_with_commands(report.notice)}", asked] if report.notice else [asked]


def limit_reached(needed: int, available: int) -> str:
    """Return what the user is told, in mode `confirm`, when a request is reduced without a yes."""
    return f"⚠️ {over_limit_notice(needed, available)}"


def _with_commands(text: str) -> str:
    """Return a text of the core with the bots' commands instead of the methods."""
    return text.replace("`compact()`", "/compact")


def _when_reduced(report: Report) -> str:
    return f"as soon as it pays, at the latest before a request would take more than {report.percent(report.limit)}"


def _used_and_limit(report: Report) -> str:
    return f"{report.percent(report.used)} of the window, and at most {report.percent(report.limit)} fit"


def context(report: Report) -> str:
    """Return what fills the window; the parts add up to the window."""
    filled = min(BAR_CELLS, max(round(report.used_share * BAR_CELLS), 1 if report.used else 0))
    lines = [f"▕{'█' * filled}{'·' * (BAR_CELLS - filled)}▏ {report.percent(report.used)}"]
    lines += [_category_line(name, tokens, report) for name, tokens in report.shown_totals]
    lines.append(_category_line("window", report.window, report))
    below = [
        f"Used: {report.used:,} tokens ({report.accuracy}), {_used_and_limit(report)}. {_thresholds(report)}",
        *_summary_line(report),
        *_clip_line(report),
        *_unseen_lines(report),
    ]
    return "\n".join([f"{footer(report)} · {report.model}", "```", *lines, "```", *below])


def _thresholds(report: Report) -> str:
    warns = f"A warning comes at {report.percent(report.warn)}"
    match report.mode:
        case "confirm":
            return f"{warns}, and from {report.percent(report.act)} on you are asked whether to compact it."
        case "off":
            return f"{warns}; old turns are summarised only by /compact."
        case _:
            return f"{warns}; old turns are reduced {_when_reduced(report)}."


def _category_line(name: str, tokens: int, report: Report) -> str:
    return f"{name:<12} {tokens:>9,} {report.percent(tokens):>8}"


def _summary_line(report: Report) -> Iterable[str]:
    count = len(report.summaries)
    if count:
        many = "One summary replaces" if count == 1 else f"{count:,} summaries replace"
        yield f"{many} older turns; /undo undoes the newest reduction."


def _clip_line(report: Report) -> Iterable[str]:
    count = report.reduced.clipped
    if count:
        many = "One long text is" if count == 1 else f"{count:,} long texts are"
        yield f"{many} clipped: the model sees a part of it and can look up the rest."


def _unseen_lines(report: Report) -> Iterable[str]:
    """Yield the warning about statements that are shown nowhere: a chat has no pins, its user can repeat them."""
    lost = unseen(report.statements)
    if not lost:
        return
    many = "One statement" if len(lost) == 1 else f"{len(lost):,} statements"
    verb = "is" if len(lost) == 1 else "are"
    yield f"⚠️ {many} of yours {verb} shown nowhere: there is no room. Say again what still holds:"
    for one in lost[-MAX_QUOTED_STATEMENTS:]:
        text = one_line(one.text, width=MAX_QUOTED_STATEMENT_CHARS).replace("`", "'")
        yield f"• `{text}`"
    if len(lost) > MAX_QUOTED_STATEMENTS:
        yield f"• and {len(lost) - MAX_QUOTED_STATEMENTS:,} older ones"


def tokens(report: Report, totals: UsageTotals) -> str:
    """Return tokens, turns and cost so far."""
    lines = [
        footer(report),
        f"Next request: {report.used:,} tokens ({report.accuracy})",
        f"Turns: {report.turns:,} so far{_turns_left(report)}",
        f"Calls: {totals.calls:,} · read {_input_tokens(totals):,} tokens "
        f"({_cached_share(totals) * 100:.0f} % from the cache) · written {totals.output:,}",
        f"Cost: {cost_text(report.spent, report.unknown_calls, report.saved)}",
    ]
    return "\n".join(lines)


def _turns_left(report: Report) -> str:
    """Return the rest of the sentence about turns; "" if it is not known how many are left."""
    if report.turns_left is None:
        return ""
    left = f"about {report.turns_left:,}" if report.turns_left else "less than one turn"
    until = "you are asked to compact" if report.mode == "confirm" else "old turns must be reduced"
    return f", {left} until {until}"


def _input_tokens(totals: UsageTotals) -> int:
    return totals.input + totals.cache_read + totals.cache_write


def _cached_share(totals: UsageTotals) -> float:
    return totals.cache_read / max(1, _input_tokens(totals))


# ── Reductions ─────────────────────────────────────────────────────────────────────────────────────────


def compacted(events: Sequence[Event], *, before: int, after: int) -> str:
    """Return the reply to /compact, or to a yes; the events are the reductions, oldest first."""
    saved, newest = before - after, events[-1]
    part = f" ({saved / before * 100:.0f} % less)" if before and saved > 0 else ""
    is_summary = isinstance(newest.fact, Compacted) and not newest.fact.masks
    done = f"Summarised{_author(newest)}" if is_summary else "Reduced"
    return f"🗜 {done}: {before:,} → {after:,} tokens{part}. {undo_hint(events)}"


def undo_hint(events: Sequence[Event]) -> str:
    """Return the commands that undo reductions: the newest first, because it may contain the others."""
    if len(events) > MAX_UNDO_COMMANDS:
        return f"/undo undoes the newest of these {len(events):,} changes; sent {len(events):,} times, all of them."
    commands = ", then ".join(f"/undo {event.handle}" for event in reversed(events))
    return f"{commands} undoes it."


def added_tools(tokens: int) -> str:
    """Return the line about the tools that the model gets with the first reduction."""
    return f"🔎 The model got tools that look up what it no longer sees: {tokens:,} tokens."


def _author(event: Event) -> str:
    fact = event.fact
    if not isinstance(fact, Compacted) or not fact.by:
        return ""
    if is_by_model(fact):
        return f" by {fact.by}"
    why = " (the model's text did not pass the checks)" if read_metrics(fact).asked else ""
    return f" without a model{why}"


def compaction_not_needed(report: Report) -> str:
    """Return the reply to an old button."""
    return f"That is no longer needed. {footer(report)}. /compact does it anyway."


def undone(event: Event, report: Report, *, is_new: bool, warning: str = "") -> str:
    """Return the reply to /undo; a reduction that `is_new` was made since the last answer, so it was not reported
    before. `warning` says what can go wrong now."""
    names = {
        Clipped: "a clipped text",
        Compacted: "a summary",
        Dropped: "a cut",
        Masked: "placeholders",
        Rewound: "a rewind",
    }
    if isinstance(event.fact, Superseded):
        return f"↩️ Undid {event.handle}: {handle(event.fact.target)} holds again."
    is_cut = isinstance(event.fact, Compacted) and event.fact.masks
    what = "placeholders and their record" if is_cut else names.get(type(event.fact), "a reduction")
    when = ", made since the last answer" if is_new else ""
    text = f"↩️ Undid {what} ({event.handle}{when}): the model sees what it had hidden again."
    if warning:
        text = f"{text} ⚠️ {warning}."
    if report.state != "over":
        return text
    full = f"The context takes {_used_and_limit(report)}"
    return f"{text} {full}, so old turns are reduced again before the next answer."


def not_undone(problem: ContextOverflow) -> str:
    """Return the reply to an /undo after which no reduction could make the next request fit."""
    return (
        f"Nothing was undone: the next request would need {problem.needed:,} tokens, at most "
        f"{problem.available:,} fit, and nothing else can be reduced instead."
    )


def nothing_to_undo(name: str) -> str:
    """Return the reply to an /undo that finds no reduction."""
    if name:
        return (
            f"There is nothing named {one_line(name, width=40)} to undo; /undo alone undoes the newest one."
        )
    return "There is nothing to undo: the model sees this conversation in full."


# ── Errors ─────────────────────────────────────────────────────────────────────────────────────────────


def error(problem: FovealError) -> str:
    """Return an error as a reply."""
    if isinstance(problem, Busy):
        return BUSY
    return f"❌ That did not work: {_reason(problem)}."


def not_compacted(problem: NotCompacted, report: Report) -> str:
    """Return the reply to a /compact or a yes that reduced nothing: why, and what fills the window instead."""
    why = _with_commands(_scrubbed(problem.problem))
    return f"Nothing was summarised: {why}. In the context, {largest_part(report.totals)}."


CONTEXT_TOO_LARGE: Final = (
    "what must stay in the context does not fit; the operator of the server must fix that"
)
"""Why there is no answer when the request does not fit whatever is reduced, as the end of a sentence."""


def oversized_message(report: Report) -> EventStatus | None:
    """Return the newest message if it is the reason why a request does not fit whatever is reduced, else None."""
    latest = next((event for event in reversed(report.events) if event.kind == "user_said"), None)
    return latest if latest is not None and latest.tokens * 2 > report.limit else None


def message_too_large(tokens: int, report: Report) -> str:
    """Return why there is no answer to a message that fits into no request, as the end of a sentence."""
    return (
        f"your message takes {tokens:,} tokens, and a whole request may take at most {report.limit:,}. It stays in "
        "the conversation, and from your next message on the model sees a part of it. To send it in parts, or as a "
        "text file, of which the model reads the beginning, take it out first"
    )


def not_stored(problem: FovealError) -> str:
    return f"{NOT_STORED}: {_reason(problem)}."


def answer_later(problem: str) -> str:
    """Return the reply while the answer is postponed."""
    text = _scrubbed(problem)
    return f"⏳ {text[:1].upper()}{text[1:]}."


def no_answer(problem: str, *, code: str) -> str:
    """Return the reply for a failed turn."""
    reason = PROVIDER_FAILURES.get(code) or _scrubbed(problem)
    return f"❌ No answer: {reason}." if reason else "❌ No answer."


def _reason(problem: FovealError) -> str:
    if isinstance(problem, StoreError):
        return f"the server's store has a problem ({_scrubbed(str(problem))})"
    code = problem.code if isinstance(problem, ProviderError) else ""
    return PROVIDER_FAILURES.get(code) or _scrubbed(str(problem))


def _scrubbed(problem: str) -> str:
    return one_line(scrub(problem), width=MAX_ERROR_CHARS).rstrip(".")


# ── Owners ─────────────────────────────────────────────────────────────────────────────────────────────


def place_closed(message: ChatMessage, cause: str, *, count: int, may_reopen: bool) -> str:
    """Return what a user of the bot is told when answers cannot be sent to a chat."""
    answers = "1 answer" if count == 1 else f"{count:,} answers"
    name = one_line(message.place_name, width=100).replace("`", "'")
    where = f"in `{name}`" if name else f"of the session `{message.session}`"
    later = "The bot sends them when that works again, within two days. " if may_reopen else ""
    return f"⚠️ {answers} {where} cannot be sent: {cause}. {later}The session on the server holds them."


def moved_reply(cause: str) -> str:
    """Return the first line of a reply that goes to the private chat of its user instead."""
    return f"↪️ I cannot reply where you wrote, because {cause}:"


# ── Content that is not read ───────────────────────────────────────────────────────────────────────────


def not_read(kind: str, read: Sequence[str] = ()) -> str:
    """Return the notice about a kind of content that the bot does not read, such as "voice messages".

    `read` are the kinds that it reads.
    """
    instead = f" I read {', '.join(read[:-1])} and {read[-1]}." if read else ""
    return f"I do not read {kind}.{instead}"


def files_not_shown(names: Sequence[str], noun: str, *, total: int, problem: str = "") -> str:
    """Return the notice about files that the model does not get; `total` files of the message are of that kind."""
    count = len(names)
    if count == 1 and noun != "picture":
        files = one_line(names[0], width=60)
    elif total == 1:
        files = f"The {noun}"
    else:
        files = f"{count:,} of {total:,} {noun}s" if count < total else f"{count:,} {noun}s"
    why = f": {problem}" if problem else ""
    return f"📎 {files} {'was' if count == 1 else 'were'} not shown to the model{why}."


def file_cut(name: str, extent: str) -> str:
    """Return the notice about a text file of which the model gets the beginning."""
    return f"📎 {one_line(name, width=60)} was cut to fit: the model gets the first {extent}."
