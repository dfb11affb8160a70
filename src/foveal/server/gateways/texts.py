"""Texts of the bots, as Markdown: footer, output of commands, errors.

1. All numbers come from the report: the footer and the commands show the numbers that trigger reductions.
2. The output of a command is sent and not stored: it does not enter the conversation.
3. No error text contains a secret: known errors have a sentence of their own, and the others are scrubbed.
"""

from __future__ import annotations

import math
import re
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
from foveal.core.policies import PRESETS
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import Busy, ContextOverflow, FovealError, NotCompacted, ProviderError, StoreError
from foveal.server.chat_questions import ChatQuestion
from foveal.server.chat_records import CHAT_MESSAGE_TTL_S, ChatMessage

# ── Texts ──────────────────────────────────────────────────────────────────────────────────────────────

BOT_COMMANDS: Final = {
    "compact": "summarise older messages now; the words say what matters most",
    "context": "show what fills the context window",
    "tokens": "show tokens and cost so far, and the turns that are left",
    "undo": "bring back what the newest summary or cut took away",
    "memory": "show what I remember about you; words search it",
    "remember": "remember something you say in all our conversations",
    "forget": "forget something I remember, by its id or its words",
    "new": "start afresh; record, summary or rules takes that along, a name chooses the agent",
    "stop": "stop the answer that I am writing",
    "help": "list what I can do",
    "pair": "connect this account with me",
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
NO_MESSAGES: Final = "We have not talked here yet."
NEW_SESSION: Final = "🆕 Let us start afresh. Our old conversation stays on the server."
CONTINUED_SESSION: Final = (
    "🆕 Let us start afresh, with the {carry} of our old conversation, which stays on the server."
)
OLD_ANSWER: Final = "The answer that I still owe you belongs to it."
OLD_ANSWERS: Final = "The {count:,} answers that I still owe you belong to it."
BAD_CARRY: Final = "/new starts afresh; /new record, /new summary and /new rules take that along."
PROPOSALS: Final = "💡 You mentioned things that I could remember: /memory shows them."
NEW_AGENT: Final = "From now on, `{agent}` answers you."
EMPTY_ANSWER: Final = "(The model had nothing to say.)"
STOPPED: Final = "⏹ Stopped."
BUSY: Final = "I am still writing. Try again when you have the answer, or send /stop."
AFTER_ANSWER: Final = "⏳ I finish the current answer first."
IDLE: Final = "I am not writing anything right now."
PAIRED: Final = "Welcome! From now on I answer you. /help lists what I can do."
ALREADY_PAIRED: Final = "I answer you already, so you need no code. /help lists what I can do."
NOT_PAIRED: Final = "That code is wrong or too old. `foveal pair` on the server makes a new one."
DECLINED: Final = "All right, nothing changes. I ask again after the next answer."
TAKEN_OUT: Final = "↩️ I took your message out: the model does not see it any more. /undo brings it back."
NOT_TAKEN_OUT: Final = "We have gone on since, so the message stays. /new starts without it."
OLD_BUTTON: Final = "That button is too old to work. /help lists what I can do."
INTERNAL_ERROR: Final = "❌ Sorry, something went wrong on the server. Its log has the details."
NOT_STORED: Final = "❌ I could not save your message, please send it again"
PROVIDER_FAILURES: Final = {
    "key": "the model's provider does not accept the server's API key, which only the server's operator can change",
    "rate": "the model's provider gets too many requests right now",
    "connection": "the model's provider cannot be reached",
    "interrupted": "the connection to the model was interrupted",
    "server": "the model's provider has a problem of its own",
}
"""Sentences for provider errors by their code; other errors are quoted, scrubbed."""

# ── Access and help ────────────────────────────────────────────────────────────────────────────────────


def no_access(platform: str, user: int) -> str:
    """Return the only reply to a user without access."""
    return (
        f"Sorry, I do not know you yet (your id is {user}). Ask the operator of this bot for a code from "
        f"`foveal pair {platform}`, and send it to me as /pair CODE."
    )


def locked_out(platform: str, user: int, *, seconds: float) -> str:
    """Return the reply after too many wrong codes, when a right code is not accepted either."""
    minutes = max(1, math.ceil(seconds / 60))
    return (
        f"Those were too many wrong codes. Try again in {minutes} minute{'s' if minutes != 1 else ''}, or ask "
        f"the operator of this bot to add your id ({user}) to `{platform}.allowed`."
    )


def help_text() -> str:
    """Return a short introduction and the list of commands."""
    listed = "\n".join(
        f"/{name}{COMMAND_ARGUMENTS.get(name, '')} – {about}" for name, about in BOT_COMMANDS.items()
    )
    return (
        "Write to me about anything. We can talk for as long as you like: when the context window fills up, I "
        "summarise older messages, or ask you first if the server is set up that way. Nothing is lost."
        f"\n\n{listed}"
    )


def unknown_command(word: str) -> str:
    return f"I do not know {one_line(word, width=40)}. /help lists what I can do."


def scheduled(text: str, *, name: str) -> str:
    """Return an answer that a schedule asked for with the name of the schedule; "" for no schedule."""
    return f"⏰ `{name}`\n\n{text}" if name else text


def bad_new(agents: Sequence[str]) -> str:
    """Return the reply to /new with words that it does not know."""
    return f"{BAD_CARRY} /new NAME chooses an agent: {', '.join(agents)}." if agents else BAD_CARRY


def new_session(*, carry: str = "", agent: str = "", proposals: int = 0, waiting: int = 0) -> str:
    """Return the reply to /new; `proposals` wait for the user's yes since the old conversation, and `waiting`
    messages there have no answer yet."""
    text = CONTINUED_SESSION.format(carry=carry) if carry else NEW_SESSION
    if waiting:
        text = f"{text} {OLD_ANSWER if waiting == 1 else OLD_ANSWERS.format(count=waiting)}"
    text = f"{text} {NEW_AGENT.format(agent=agent)}" if agent else text
    return f"{text}\n{PROPOSALS}" if proposals else text


def memory_note(text: str) -> str:
    """Return the line below an answer about what was remembered or forgotten."""
    return f"🧠 {text}"


def budget_note(text: str) -> str:
    """Return the line below an answer about a soft limit that is reached."""
    return f"💰 {text[:1].upper()}{text[1:]}."


def step_limit(problem: str) -> str:
    """Return the last line of an answer that has reached its limit of tool calls."""
    return f"⏹ The answer ends here: {problem or 'it has reached its limit'}. Say “go on”, and I do."


def stopping(queued: int) -> str:
    """Return the reply to /stop; `queued` further messages wait for an answer."""
    if queued <= 0:
        return "Stopping."
    waiting = "Another message waits" if queued == 1 else f"{queued:,} more messages wait"
    return f"Stopping. {waiting} for an answer."


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
        return f"⚠️ Our conversation fills {used} of the context window. From {act} on, I ask whether to shorten it."
    if report.mode == "off":
        return (
            f"⚠️ Our conversation fills {used} of the context window, and a request may take at most {limit}. "
            "/compact summarises older messages."
        )
    if report.state == "over":
        return (
            f"⚠️ The context window is full: {_used_and_limit(report)}. "
            "I summarise older messages before the next answer."
        )
    # `act` is no promise: below it, a summary may be ready or a cut cheap; above it, a policy may wait for either.
    when = _when_reduced(report)
    return f"⚠️ Our conversation fills {used} of the context window. I summarise older messages {when}."


def question(report: Report) -> list[str]:
    """Return the lines below an answer in mode `confirm` when the user is asked, with yes and no as buttons."""
    asked = f"⚠️ The context window is full: {_used_and_limit(report)}. Shall I shorten our conversation now?"
    return [f"⏳ {_with_commands(report.notice)}", asked] if report.notice else [asked]


def limit_reached(needed: int, available: int) -> str:
    """Return what the user is told, in mode `confirm`, when a request is reduced without a yes."""
    return f"⚠️ {over_limit_notice(needed, available)}"


def _with_commands(text: str) -> str:
    """Return a text of the core with the bots' commands instead of the methods."""
    return text.replace("`compact()`", "/compact")


def _when_reduced(report: Report) -> str:
    latest = report.percent(_latest(report))
    return f"as soon as it pays off, at the latest before a request would take more than {latest}"


def _latest(report: Report) -> int:
    """Return the tokens above which a policy reduces whatever that costs: the summarising policies at their
    threshold, the others at the limit."""
    summarising = [name for name, policy in PRESETS.items() if policy.ladder == "summary"]
    return report.act if report.policy in summarising else report.limit


def _used_and_limit(report: Report) -> str:
    return f"{report.percent(report.used)}, and a request may take at most {report.percent(report.limit)}"


def context(report: Report) -> str:
    """Return what fills the window; the parts add up to the window."""
    filled = min(BAR_CELLS, max(round(report.used_share * BAR_CELLS), 1 if report.used else 0))
    lines = [f"▕{'█' * filled}{'·' * (BAR_CELLS - filled)}▏ {report.percent(report.used)}"]
    lines += [_category_line(name, tokens, report) for name, tokens in report.shown_totals]
    lines.append(_category_line("window", report.window, report))
    below = [
        f"Our conversation fills {report.percent(report.used)} of the context window ({report.used:,} tokens, "
        f"{report.accuracy}), and a request may take at most {report.percent(report.limit)}. {_thresholds(report)}",
        *_summary_line(report),
        *_clip_line(report),
        *_unseen_lines(report),
    ]
    return "\n".join([f"{footer(report)} · {report.model}", "```", *lines, "```", *below])


def _thresholds(report: Report) -> str:
    warns = f"I warn you at {report.percent(report.warn)}"
    match report.mode:
        case "confirm":
            return f"{warns}, and from {report.percent(report.act)} on I ask whether to shorten it."
        case "off":
            return f"{warns}; only /compact summarises older messages."
        case _:
            return f"{warns}, and I shorten older messages {_when_reduced(report)}."


def _category_line(name: str, tokens: int, report: Report) -> str:
    return f"{name:<12} {tokens:>9,} {report.percent(tokens):>8}"


def _summary_line(report: Report) -> Iterable[str]:
    count = len(report.summaries)
    if count:
        many = "One summary stands" if count == 1 else f"{count:,} summaries stand"
        yield f"{many} for older messages; /undo takes the newest one back."


def _clip_line(report: Report) -> Iterable[str]:
    count = report.reduced.clipped
    if count:
        if count == 1:
            yield "Of one long text the model sees only a part; it can look up the rest."
        else:
            yield f"Of {count:,} long texts the model sees only a part; it can look up the rest."


def _unseen_lines(report: Report) -> Iterable[str]:
    """Yield the warning about statements that are shown nowhere: a chat has no pins, its user can repeat them."""
    lost = unseen(report.statements)
    if not lost:
        return
    many = "one thing" if len(lost) == 1 else f"{len(lost):,} things"
    yield f"⚠️ There is no room for {many} that you said. Tell me again what still holds:"
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
    until = "I ask whether to shorten it" if report.mode == "confirm" else "older messages must be shortened"
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
    done = f"Summarised{_author(newest)}" if is_summary else "Shortened"
    return f"🗜 {done}: {before:,} → {after:,} tokens{part}. {undo_hint(events)}"


def undo_hint(events: Sequence[Event]) -> str:
    """Return the command that undoes a reduction: any of its events names it."""
    return f"/undo {events[-1].handle} takes it back."


def added_tools(tokens: int) -> str:
    """Return the line about the tools that the model gets with the first reduction."""
    return f"🔎 The model can now look up what it no longer sees, with tools that take {tokens:,} tokens."


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
    return f"There is room again, so I leave it. {footer(report)}. /compact does it anyway."


REDUCTION_NAMES: Final = {
    Clipped: ("a clipped text", "clipped texts"),
    Compacted: ("a summary", "summaries"),
    Dropped: ("a cut", "cuts"),
    Masked: ("placeholders", "sets of placeholders"),
    Rewound: ("a rewind", "rewinds"),
}
"""What /undo takes back: one, and several."""


def undone(events: Sequence[Event], report: Report, *, is_new: bool, warning: str = "") -> str:
    """Return the reply to /undo; the events of one reduction, the newest first. One that `is_new` was made since
    the last answer, so it was not reported before. `warning` says what can go wrong now."""
    newest, oldest = events[0], events[-1]
    if isinstance(newest.fact, Superseded):
        return f"↩️ I took {newest.handle} back: {handle(newest.fact.target)} holds again."
    named = newest.handle if newest is oldest else f"{oldest.handle} to {newest.handle}"
    when = ", made since the last answer" if is_new else ""
    text = f"↩️ I took back {_what_was_undone(events)} ({named}{when}): the model sees it all again."
    if warning:
        text = f"{text} ⚠️ {warning}."
    if report.state != "over":
        return text
    full = f"The context window is too full now ({_used_and_limit(report)})"
    return f"{text} {full}, so I shorten older messages again before the next answer."


def _what_was_undone(events: Sequence[Event]) -> str:
    fact, count = events[0].fact, len(events)
    if len({type(event.fact) for event in events}) > 1:
        return f"{count:,} changes"
    if isinstance(fact, Compacted) and fact.masks and count == 1:
        return "placeholders and their record"
    one, several = REDUCTION_NAMES.get(type(fact), ("a reduction", "reductions"))
    return one if count == 1 else f"{count:,} {several}"


def not_undone(problem: ContextOverflow) -> str:
    """Return the reply to an /undo after which no reduction could make the next request fit."""
    return (
        f"I cannot take that back: the next request would need {problem.needed:,} tokens, at most "
        f"{problem.available:,} fit, and there is nothing else to shorten."
    )


def nothing_to_undo(name: str) -> str:
    """Return the reply to an /undo that finds no reduction."""
    if name:
        return f"I find nothing called {one_line(name, width=40)} to take back; /undo alone takes the newest one."
    return "There is nothing to take back: the model sees our whole conversation."


# ── Errors ─────────────────────────────────────────────────────────────────────────────────────────────


def error(problem: FovealError) -> str:
    """Return an error as a reply."""
    if isinstance(problem, Busy):
        return BUSY
    return f"❌ Sorry, that did not work: {_reason(problem)}."


def not_compacted(problem: NotCompacted, report: Report) -> str:
    """Return the reply to a /compact or a yes that reduced nothing: why, and what fills the window instead."""
    why = _with_commands(_scrubbed(problem.problem))
    return f"I left everything as it is: {why}. In the context window, {largest_part(report.totals)}."


CONTEXT_TOO_LARGE: Final = (
    "what must stay in the context window does not fit, which only the operator of the server can change"
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
        "our conversation, and from your next message on the model sees a part of it. If you would rather send it "
        "in parts, or as a text file, of which the model reads the beginning, take it out first"
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
    return f"❌ Sorry, I have no answer: {reason}." if reason else "❌ Sorry, I have no answer."


def _reason(problem: FovealError) -> str:
    if isinstance(problem, StoreError):
        return f"the server has a problem with its store ({_scrubbed(str(problem))})"
    code = problem.code if isinstance(problem, ProviderError) else ""
    return PROVIDER_FAILURES.get(code) or _scrubbed(str(problem))


def _scrubbed(problem: str) -> str:
    return one_line(scrub(problem), width=MAX_ERROR_CHARS).rstrip(".")


# ── Tools ──────────────────────────────────────────────────────────────────────────────────────────────

ANSWERED_BEFORE: Final = "That question has been answered already, or its time is over."


def tool_question(question: ChatQuestion, *, asks_admins: bool, is_elsewhere: bool) -> str:
    """Return the question whether a tool may run, with all that it would be called with. `is_elsewhere`: an owner
    gets it who does not see the chat."""
    runs = re.findall("`+", question.text)
    fence = "`" * max([3, *(len(run) + 1 for run in runs)])  # what is shown cannot end its own frame
    where = f" in the chat `{question.session}`" if is_elsewhere else ""
    return (
        f"🔐 May I use `{question.tool}`{where}? This is what it gets:\n\n{fence}\n{question.text}\n{fence}\n\n"
        f"{_who_answers(asks_admins=asks_admins)}. Without an answer in {_minutes(question)}, I do without it."
    )


def asked_owner(question: ChatQuestion) -> str:
    """Return what the user is told whose question an owner of the bot gets."""
    return (
        f"⏳ I would like to use `{question.tool}` and have asked the owner of this bot. Without an answer in "
        f"{_minutes(question)}, I do without it."
    )


def question_answered(question: ChatQuestion, *, yes: bool) -> str:
    return f"✅ Fine, I use `{question.tool}`." if yes else f"🚫 Fine, I do without `{question.tool}`."


def question_expired(question: ChatQuestion) -> str:
    return f"⌛ Nobody answered within {_minutes(question)}, so I did not use `{question.tool}`."


def not_your_question(*, asks_admins: bool) -> str:
    return f"{_who_answers(asks_admins=asks_admins)}."


def _who_answers(*, asks_admins: bool) -> str:
    admins = " or an administrator of this group" if asks_admins else ""
    return f"Only the owner of this bot{admins} can answer"


def _minutes(question: ChatQuestion) -> str:
    return "1 minute" if question.minutes == 1 else f"{question.minutes} minutes"


# ── Owners ─────────────────────────────────────────────────────────────────────────────────────────────


def place_closed(message: ChatMessage, cause: str, *, count: int, may_reopen: bool) -> str:
    """Return what a user of the bot is told when answers cannot be sent to a chat."""
    answers = "1 answer" if count == 1 else f"{count:,} answers"
    name = one_line(message.place_name, width=100).replace("`", "'")
    where = f"in `{name}`" if name else f"of the session `{message.session}`"
    days = f"{CHAT_MESSAGE_TTL_S / 86_400:.3g} days"
    later = f"I try again for {days}. " if may_reopen else ""
    return f"⚠️ I cannot send {answers} {where}: {cause}. {later}The session on the server has what I wrote."


NOTHING_KEPT: Final = "There is nothing left to show."


def kept_answers(count: int) -> str:
    """Return the offer to a user who had blocked the bot."""
    if count == 1:
        return "While I could not write to you, one answer was left. Shall I show it?"
    return f"While I could not write to you, {count:,} answers were left. Shall I show them?"


def moved_reply(cause: str) -> str:
    """Return the first line of a reply that goes to the private chat of its user instead."""
    return f"↪️ I cannot reply where you wrote to me, because {cause}. So here it is:"


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
        files = f"the {noun}"
    else:
        files = f"{count:,} of {total:,} {noun}s" if count < total else f"{count:,} {noun}s"
    why = f": {problem}" if problem else ""
    return f"📎 The model does not see {files}{why}."


def file_cut(name: str, extent: str) -> str:
    """Return the notice about a text file of which the model gets the beginning."""
    return f"📎 {one_line(name, width=60)} was cut to fit: the model gets the first {extent}."
