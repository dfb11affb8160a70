"""The terminal. What is finished is printed above for good; what moves stands below it in a few lines; then comes
the line where the user types, and the status. Everything that is printed has gone through `foveal.core.wire.safe_print`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.layout.containers import (
    ConditionalContainer,
    Float,
    FloatContainer,
    HSplit,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.renderer import CPR_Support
from prompt_toolkit.styles import Style

from foveal.agent.agent_events import (
    AgentEvent,
    ModelAnswered,
    TextStreamed,
    ToolCalling,
    ToolFinished,
    UserMessageHeard,
)
from foveal.apps.cli.chat.output.event_text_rows import told
from foveal.apps.cli.chat.output.live_area import LiveArea, asked, choices, status
from foveal.apps.cli.chat.output.markdown import StreamingMarkdown
from foveal.apps.cli.chat.output.styled_text import Row, Span, bold, dim, painted, row
from foveal.apps.cli.chat.user_input import Pastes, bindings, buffer
from foveal.apps.cli.chat.user_interface import Answer, Question
from foveal.core.engine.report import Report

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

ENTRY: Final = 10
"""Lines of the entry that are shown at once."""
MENU: Final = 6
LOOK: Final = Style.from_dict(
    {
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion": "bg:default fg:ansicyan",
        "completion-menu.completion.current": "bold reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)


class Screen:
    """A `Front` with a person in front of it."""

    asks = True

    def __init__(
        self, completer: Completer, *, entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> None:
        self.colours = not os.environ.get("NO_COLOR")
        self.live = LiveArea()
        self.pastes = Pastes()
        self.entry = buffer(completer)
        self._entered = entered
        self._growing = StreamingMarkdown(colours=self.colours)
        self._report: Report | None = None
        self._answering: asyncio.Future[Answer] | None = None
        self._gap = True
        """The last line above is empty."""
        self._said = False
        """A part of the answer stands above."""
        self._text = ""
        """The message that is being worked on."""
        self.app: Application[None] = Application(
            layout=Layout(self._container(), focused_element=self.entry),
            key_bindings=bindings(self, stopped),
            style=LOOK,
            erase_when_done=True,
        )
        self.app.renderer.cpr_support = (
            CPR_Support.NOT_SUPPORTED
        )  # nothing here needs to know where the cursor is

    # ── layout ───────────────────────────────────────────────────────────────────────────────────────

    def _container(self) -> FloatContainer:
        moving = Window(FormattedTextControl(self._moving), dont_extend_height=True, wrap_lines=False)
        entry = Window(
            BufferControl(self.entry),
            height=self._entry_height,
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=self._prefix,
        )
        bottom = Window(FormattedTextControl(self._status), height=1, dont_extend_height=True)
        anything = Condition(lambda: bool(self._moving_text()))
        rows = HSplit([ConditionalContainer(moving, anything), entry, bottom], align=VerticalAlign.TOP)
        menu = Float(CompletionsMenu(max_height=MENU), xcursor=True, ycursor=True)
        return FloatContainer(rows, [menu])

    def _entry_height(self) -> Dimension:
        completing = self.entry.complete_state is not None and bool(self.entry.complete_state.completions)
        return Dimension(min=MENU + 1 if completing else 1, max=max(ENTRY, MENU + 1))

    def _prefix(self, line: int, wrapped: int) -> AnyFormattedText:
        if line or wrapped:
            return "  "
        mark = f"{choices(self.live.question)} " if self.live.question is not None else "› "
        return self._ansi([row(Span(mark, "fair" if self.live.question is not None else "accent"))])

    def _status(self) -> AnyFormattedText:
        if self._report is None:
            return self._ansi([row(dim(" opening …"))])
        return self._ansi([status(self._report, width=self.width - 1)])

    def _moving(self) -> AnyFormattedText:
        return ANSI(self._moving_text())

    def _moving_text(self) -> str:
        rows = painted(self.live.rows(width=self.width - 1), width=self.width - 1, colours=self.colours)
        height = max(3, self.app.output.get_size().rows - rows.count("\n") - ENTRY - 3)
        lines = self.live.answer.split("\n")[-height - 1 :]
        return ("\n".join(lines) + rows).rstrip("\n")

    def _ansi(self, rows: Sequence[Row]) -> ANSI:
        return ANSI(painted(rows, colours=self.colours).rstrip("\n"))

    @property
    def width(self) -> int:
        return max(20, self.app.output.get_size().columns)

    # ── printing ─────────────────────────────────────────────────────────────────────────────────────

    def write(self, text: str) -> None:
        """Print above the entry, for good; `text` is safe and ends its lines."""
        if not text:
            return
        output = self.app.output
        if self.app.is_running:
            self.app.renderer.erase()
        output.write_raw(text)
        output.flush()
        self._gap = text.endswith("\n\n") or text == "\n"
        self.app.invalidate()

    def gap(self) -> None:
        """One empty line, if there is none."""
        if not self._gap:
            self.write("\n")

    def rows(self, rows: Sequence[Row], *, whole: bool = False) -> None:
        """Rows as lines; those of the model's tools are cut to the width, what was asked for is wrapped."""
        self.write(painted(rows, width=0 if whole else self.width - 1, colours=self.colours))

    def show(self, rows: Sequence[Row]) -> None:
        self.gap()
        self.rows([*rows, row()], whole=True)

    def tell(self, rows: Sequence[Row]) -> None:
        self.finish()
        self.rows(rows)

    def failed(self, problem: str, *, code: str = "") -> None:
        self.gap()
        self.write(painted([row(Span(f"✗ {problem}", "bad")), row()], colours=self.colours))

    # ── a turn ───────────────────────────────────────────────────────────────────────────────────────

    def began(self, text: str) -> None:
        self.live.begin("sending")
        self._text, self._said = text, False
        self.app.invalidate()

    def happened(self, happening: AgentEvent) -> None:
        match happening:
            case UserMessageHeard():
                self._heard(self._text)
            case TextStreamed():
                self._streamed(happening)
            case ModelAnswered():
                self.finish()
                self.live.begin("thinking")
            case ToolCalling():
                self.finish()
                self.gap()
                self.rows(told(happening))
                self.live.begin(happening.what)
            case ToolFinished():
                self.tell([*told(happening), row()])
                self.live.begin("thinking")
            case _:
                self.tell(told(happening))

    def ended(self) -> None:
        self.finish()
        self.live.doing = ""
        self._said = False
        self.gap()

    def status(self, report: Report) -> None:
        self._report = report
        self.app.invalidate()

    def progress(self, stage: str, detail: str = "") -> None:
        self.live.wait_for(stage, detail)
        self.app.invalidate()

    def _heard(self, text: str) -> None:
        """What the user said is stored: now it stands above."""
        lines = text.rstrip("\n").split("\n")
        rows = [row(Span("› ", "accent"), bold(lines[0])), *(row("  ", bold(line)) for line in lines[1:8])]
        if len(lines) > 8:
            rows.append(row(dim(f"  … {len(lines) - 8:,} more lines, {len(text):,} characters in all")))
        self.gap()
        self.write(painted(rows, width=self.width - 1, colours=self.colours) + "\n")
        self.live.begin("thinking")

    def _streamed(self, streamed: TextStreamed) -> None:
        piece = streamed.piece
        if piece.kind != "text":
            doing = "thinking" if piece.kind == "thinking" else "writing a call"
            if self.live.doing != doing:
                self.live.begin(doing)
            return
        if self.live.doing != "answering":
            self.live.begin("answering")
        for block in self._growing.feed(piece.text, width=self.width):
            self._block(block)
        if (picture := self._growing.picture(width=self.width)) is not None:
            self.live.answer = picture
            self.app.invalidate()

    def finish(self) -> None:
        """Print what has come of an answer."""
        self.live.answer = ""
        self._block(self._growing.end(width=self.width))

    def _block(self, drawn: str) -> None:
        if drawn:
            if self._said:
                self.gap()
            self.write(drawn)
            self._said = True

    # ── questions ────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, question: Question) -> Answer:
        self.finish()
        self._answering = asyncio.get_running_loop().create_future()
        self.live.question = question
        self.app.invalidate()
        try:
            answer = await self._answering
            said = {"y": "yes", "n": "no", "a": f"always {question.always}"}[answer]
            rows = asked(question, width=self.width - 1)
            self.rows([*rows[:-1], (*rows[-1], dim(f" {said}"))])
            return answer
        finally:
            self.live.question = self._answering = None
            self.app.invalidate()

    def enter(self, line: str) -> None:
        """A line that the user has ended: an answer, if there is a question and the line is one."""
        text = self.pastes.whole(line)
        question, answering = self.live.question, self._answering
        if question is not None and answering is not None and not answering.done():
            answer = _answer(text, question)
            if answer is not None:
                answering.set_result(answer)
                return
            if not question.stays:
                answering.set_result("n")
        if text.strip():
            self._entered(text)

    def queue(self, texts: Sequence[str]) -> None:
        self.live.queued = texts
        self.app.invalidate()


def _answer(text: str, question: Question) -> Answer | None:
    """What a line answers; None when it is no answer but another message."""
    word = text.strip().casefold()
    if word in ("", "n", "no"):
        return "n"
    if word in ("y", "yes"):
        return "y"
    return "a" if word in ("a", "always") and question.always else None
