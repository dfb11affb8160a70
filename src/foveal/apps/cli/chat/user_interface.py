"""Without a terminal: the answer on standard output, everything else on standard error; or all of it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TextIO

import msgspec
from msgspec.structs import replace

from foveal.agent.agent_events import AgentEvent, ModelAnswered, TextStreamed, TurnFinished
from foveal.apps.cli.chat.output.event_text_rows import note, told
from foveal.apps.cli.chat.output.styled_text import Row, plain, row
from foveal.core.engine.report import Report
from foveal.core.log.events import unraw
from foveal.core.wire.safe_print import visible
from foveal.sessions.session import Session

# ── front ─────────────────────────────────────────────────────────────────────────────────────────
# Who is on the other side: a person at a terminal, a pipe, or a program that reads JSON; one door for all.

Answer = Literal["y", "n", "a"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only the user can decide."""

    text: str
    details: tuple[Row, ...] = ()
    """What is shown with it."""
    always: str = ""
    """What `a` would allow from now on; "" when there is no such answer."""
    stays: bool = True
    """It waits for its answer; otherwise any other line is a no."""
    alone: Answer = "n"
    """The answer where nobody can be asked …"""
    advice: str = ""
    """… and what to do about it."""


class UserInterface(Protocol):
    @property
    def asks(self) -> bool:
        """Somebody is there to be asked."""
        ...

    def show(self, rows: Sequence[Row]) -> None:
        """What a command was asked for."""
        ...

    def tell(self, rows: Sequence[Row]) -> None:
        """What should be known beside the answer."""
        ...

    def failed(self, problem: str, *, code: str = "") -> None:
        """One clear message; what was said and stored is intact."""
        ...

    def began(self, text: str) -> None:
        """A message is being worked on."""
        ...

    def happened(self, happening: AgentEvent) -> None: ...

    def ended(self) -> None:
        """Whatever was being worked on is done, in one way or another."""
        ...

    def status(self, report: Report) -> None: ...

    def progress(self, stage: str, detail: str = "") -> None:
        """What is being waited for, and how far it is; "" when nothing is."""
        ...

    @property
    def colours(self) -> bool: ...

    @property
    def width(self) -> int:
        """Columns."""
        ...

    async def ask(self, question: Question) -> Answer: ...


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────


class PlainOutput:
    """Text for people and pipes."""

    asks = False
    colours = False
    width = 100

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._stage = ""

    def show(self, rows: Sequence[Row]) -> None:
        self._write(self._out, plain(rows))

    def tell(self, rows: Sequence[Row]) -> None:
        self._write(self._err, plain(rows))

    def failed(self, problem: str, *, code: str = "") -> None:
        self._write(self._err, f"foveal: {visible(problem)}\n")

    def began(self, text: str) -> None:
        self._stage = ""

    def happened(self, happening: AgentEvent) -> None:
        if isinstance(happening, ModelAnswered):
            if text := visible(happening.text).strip("\n"):
                self._write(self._err if happening.calls else self._out, f"{text}\n")
        else:
            self.tell(told(happening))

    def ended(self) -> None:
        pass

    def status(self, report: Report) -> None:
        pass

    def progress(self, stage: str, detail: str = "") -> None:
        if stage and stage != self._stage:
            self.tell([note(f"{stage} …")])
        self._stage = stage or self._stage

    async def ask(self, question: Question) -> Answer:
        """Nobody is there to be asked."""
        said = {"y": "yes", "n": "no", "a": "always"}[question.alone]
        advice = f" {question.advice}" if question.advice else ""
        self.tell([row(f"? {question.text} {said}: there is no terminal to ask at.{advice}")])
        return question.alone

    def _write(self, where: TextIO, text: str) -> None:
        where.write(text)
        where.flush()


def _opaque(value: object) -> Any:
    """What a provider sent and nobody here reads."""
    if isinstance(value, msgspec.Raw):
        return unraw(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class JsonOutput:
    """One object a line on standard output, in ASCII, so that no terminal can be commanded by it either."""

    asks = False
    colours = False
    width = 100

    def __init__(self, *, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._stage = ""

    async def opened(self, session: Session) -> None:
        """Which session this is, to go on with it later."""
        report = await session.report()
        about = {"model": report.model, "window": report.window, "policy": report.policy}
        self._write({"happening": "opened", "session": session.id, **about})

    def show(self, rows: Sequence[Row]) -> None:
        self._write({"happening": "shown", "text": plain(rows)})

    def tell(self, rows: Sequence[Row]) -> None:
        self._write({"happening": "told", "text": plain(rows)})

    def failed(self, problem: str, *, code: str = "") -> None:
        self._write({"happening": "failed", "code": code, "problem": problem})

    def began(self, text: str) -> None:
        self._stage = ""

    def happened(self, happening: AgentEvent) -> None:
        if isinstance(happening, TextStreamed) and not happening.piece.text:
            return
        if isinstance(
            happening, TurnFinished
        ):  # a line for each event of a long log would be no line any more
            happening = replace(happening, report=replace(happening.report, events=()))
        self._write(msgspec.to_builtins(happening, enc_hook=_opaque))

    def ended(self) -> None:
        pass

    def status(self, report: Report) -> None:
        pass

    def progress(self, stage: str, detail: str = "") -> None:
        if stage and stage != self._stage:
            self._write({"happening": "waiting", "stage": stage})
        self._stage = stage or self._stage

    async def ask(self, question: Question) -> Answer:
        self._write({"happening": "asked", "question": question.text, "answer": question.alone})
        return question.alone

    def _write(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()
