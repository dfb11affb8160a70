"""User interfaces of the chat: the protocol, plain text, and JSON lines.

A `UserInterface` shows output and asks questions. It has three implementations: `Screen` in output/screen.py for a
terminal, and two here that cannot ask. `PlainOutput` writes answers to standard output and everything else to
standard error; `JsonOutput` writes one JSON object per line to standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TextIO

import msgspec
from msgspec.structs import replace

from foveal.agent.events import AgentEvent, ModelAnswered, TextStreamed, TurnFinished
from foveal.agent.terminal.output.agent_event_rows import agent_event_rows, note
from foveal.agent.terminal.output.styled_text import Row, plain_text, row, text_rows
from foveal.agent.tools.todo import TodoItem
from foveal.core.engine.report import Report
from foveal.core.log.events import unraw
from foveal.core.wire.safe_print import readable, visible
from foveal.sessions.session import Session

# ── Protocol ─────────────────────────────────────────────────────────────────────────────────────────────


class Choice(msgspec.Struct, frozen=True):
    """A possible answer: the key that gives it, and what it means."""

    key: str
    """One character; `v` is taken by the full view."""
    label: str
    lasts: bool = False
    """The answer counts for more than this once, so that a second key confirms it."""


YES: Final = Choice("y", "Yes, once")
NO: Final = Choice("n", "No")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the user, with the answer to assume where there is no user to ask."""

    text: str
    details: tuple[Row, ...] = ()
    """Rows shown above the question, in full; they can be paged. The first and the last are always shown first."""
    remarks: tuple[Row, ...] = ()
    """Rows below the details that are not asked about."""
    choices: tuple[Choice, ...] = (YES, NO)
    """The possible answers; Enter and Esc mean `n`."""
    waits: bool = True
    """The question stays open until a key answers it; if False, a line does (`y` and Enter), and a text that cannot
    become an answer means no, and is the next message."""
    unattended_answer: str = "n"
    """The key of the answer where `can_ask` is False."""
    unattended_advice: str = ""
    """What to do if the unattended answer is not the wanted one."""


class MenuItem(msgspec.Struct, frozen=True):
    """A line of a menu."""

    key: str
    """What the menu returns."""
    title: str
    detail: str = ""
    """Shown dim after the title."""
    body: tuple[Row, ...] = ()
    """Shown in full with `v` (in `choose_many`) or Tab."""
    needs_view: bool = False
    """In `choose_many`, Space shows the body first, and switches the item on after the user has seen it."""


class LeaveChat(Exception):
    """Raised when the user leaves: by `/quit`, or with Esc in the menu of `--resume`."""


class UserInterface(Protocol):
    """Where a chat shows its output and asks its questions."""

    @property
    def can_ask(self) -> bool:
        """Whether there is a user to ask."""
        ...

    @property
    def colours(self) -> bool:
        """Whether the output has colours."""
        ...

    @property
    def is_unicode(self) -> bool:
        """Whether the output can have characters outside of ASCII."""
        ...

    @property
    def width(self) -> int:
        """Width of the output in columns."""
        ...

    def show(self, rows: Sequence[Row]) -> None:
        """Show the output of a command."""
        ...

    def notify(self, rows: Sequence[Row]) -> None:
        """Show a notice that is not part of an answer."""
        ...

    def show_error(self, problem: str, *, code: str = "") -> None:
        """Show why a message or command failed; the session is intact."""
        ...

    def turn_started(self, text: str) -> None:
        """A turn begins with this message."""
        ...

    def agent_event(self, event: AgentEvent) -> None:
        """Show an event of the running turn."""
        ...

    def expect_change(self, rows: Sequence[Row]) -> None:
        """Show these rows once the next call has succeeded: what it changes, as it runs without a question."""
        ...

    def turn_ended(self) -> None:
        """The turn has finished, failed or been cancelled."""
        ...

    def show_status(self, report: Report) -> None:
        """Show how full the window is now."""
        ...

    def show_plan_mode(self, *, is_on: bool) -> None:
        """Show near the input whether plan mode is on."""
        ...

    def show_todo(self, items: Sequence[TodoItem]) -> None:
        """Show the to-do list that the model keeps; none if it is empty."""
        ...

    def show_progress(self, stage: str, detail: str = "") -> None:
        """Show what the chat waits for and how far it is; "" when it waits for nothing."""
        ...

    def show_past_answer(self, text: str) -> None:
        """Show an answer of an earlier turn as answers are shown."""
        ...

    def suggest_input(self, text: str) -> None:
        """Put a text into the input line, unless the user has typed something."""
        ...

    async def ask(self, question: Question) -> str:
        """Return the key of the user's choice, or the unattended answer."""
        ...

    async def pick(self, title: str, items: Sequence[MenuItem], *, hint: str = "") -> str | None:
        """Return the key of the item that the user picks; None if there is no user or the user leaves with Esc."""
        ...

    async def choose_many(
        self, title: str, items: Sequence[MenuItem], *, hint: str = ""
    ) -> frozenset[str] | None:
        """Return the keys of the items that the user switches on; all are off at first. None as in `pick`."""
        ...

    async def edit_text(self, title: str, text: str) -> str:
        """Return a text as the user changes it; "" if there is no user or the user enters an empty line."""
        ...


# ── Without a terminal ───────────────────────────────────────────────────────────────────────────────────


class _NonInteractive:
    """The part that plain text and JSON share: there is no status line, and each stage is shown once."""

    can_ask = False
    colours = False
    is_unicode = True
    width = 100
    _stage = ""

    def turn_started(self, text: str) -> None:
        self._stage = ""

    def expect_change(self, rows: Sequence[Row]) -> None:
        pass

    def suggest_input(self, text: str) -> None:
        pass

    def turn_ended(self) -> None:
        pass

    def show_status(self, report: Report) -> None:
        pass

    def show_plan_mode(self, *, is_on: bool) -> None:
        pass

    def show_todo(self, items: Sequence[TodoItem]) -> None:
        pass

    def show_progress(self, stage: str, detail: str = "") -> None:
        if stage and stage != self._stage:
            self._show_stage(stage)
        self._stage = stage or self._stage

    def _show_stage(self, stage: str) -> None:
        raise NotImplementedError

    def show_past_answer(self, text: str) -> None:
        self.show([*text_rows(text), row()])

    def show(self, rows: Sequence[Row]) -> None:
        raise NotImplementedError

    async def pick(self, title: str, items: Sequence[MenuItem], *, hint: str = "") -> str | None:
        return None

    async def choose_many(
        self, title: str, items: Sequence[MenuItem], *, hint: str = ""
    ) -> frozenset[str] | None:
        return None

    async def edit_text(self, title: str, text: str) -> str:
        return ""


class PlainOutput(_NonInteractive):
    """Writes text: answers and the output of commands to `out`, everything else to `err`."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr

    def show(self, rows: Sequence[Row]) -> None:
        self._write(self._out, plain_text(rows))

    def notify(self, rows: Sequence[Row]) -> None:
        self._write(self._err, plain_text(rows))

    def show_error(self, problem: str, *, code: str = "") -> None:
        self._write(self._err, f"foveal: {visible(problem)}\n")

    def agent_event(self, event: AgentEvent) -> None:
        if isinstance(event, ModelAnswered) and (text := readable(event.text).strip("\n")):
            # Text beside tool calls is not the final answer.
            self._write(self._err if event.calls else self._out, f"{text}\n")
        self.notify(agent_event_rows(event))

    def _show_stage(self, stage: str) -> None:
        self.notify([note(f"{stage} …")])

    async def ask(self, question: Question) -> str:
        """Print the question with its unattended answer, and return that answer."""
        answer = {"y": "yes", "n": "no"}.get(question.unattended_answer, question.unattended_answer)
        advice = f" {question.unattended_advice}" if question.unattended_advice else ""
        self.notify([row(f"? {question.text} {answer}: there is no terminal to ask at.{advice}")])
        return question.unattended_answer

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────


class JsonOutput(_NonInteractive):
    """Writes one JSON object per line, in ASCII, so that no text can control a terminal."""

    def __init__(self, *, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    async def session_opened(self, session: Session) -> None:
        """Write the id of the session, with which the caller can continue it later."""
        report = await session.report()
        about = {"model": report.model, "window": report.window, "policy": report.policy}
        self._write({"happening": "opened", "session": session.id, **about})

    def show(self, rows: Sequence[Row]) -> None:
        self._write({"happening": "shown", "text": plain_text(rows)})

    def notify(self, rows: Sequence[Row]) -> None:
        self._write({"happening": "told", "text": plain_text(rows)})

    def show_error(self, problem: str, *, code: str = "") -> None:
        self._write({"happening": "failed", "code": code, "problem": problem})

    def agent_event(self, event: AgentEvent) -> None:
        if isinstance(event, TextStreamed) and not event.piece.text:
            return
        if isinstance(event, TurnFinished):
            # The report lists every event of the log, which would make the line very long.
            event = replace(event, report=replace(event.report, events=()))
        self._write(msgspec.to_builtins(event, enc_hook=_encode_raw))

    def _show_stage(self, stage: str) -> None:
        self._write({"happening": "waiting", "stage": stage})

    async def ask(self, question: Question) -> str:
        answer = question.unattended_answer
        advice = {"advice": question.unattended_advice} if question.unattended_advice else {}
        self._write({"happening": "asked", "question": question.text, "answer": answer, **advice})
        return answer

    def _write(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()


def _encode_raw(value: object) -> Any:
    """Encode provider data that is kept as raw JSON."""
    if isinstance(value, msgspec.Raw):
        return unraw(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
