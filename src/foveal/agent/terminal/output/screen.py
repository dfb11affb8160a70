"""The terminal screen: printed output, the live area, the input line, the status line.

Finished output is printed above and scrolls away. Below it the screen redraws the live area (`live_area.py`), the
input line and the status line. All text goes through `foveal.core.wire.safe_print`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
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
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.renderer import CPR_Support
from prompt_toolkit.styles import Style

from foveal.agent.events import (
    AgentEvent,
    ModelAnswered,
    PromptReading,
    RetryScheduled,
    TextStreamed,
    ToolCalling,
    ToolFinished,
    ToolOutputStreamed,
    UserMessageStored,
)
from foveal.agent.terminal.output.agent_event_rows import agent_event_rows
from foveal.agent.terminal.output.live_area import LiveArea, status_row
from foveal.agent.terminal.output.panel_host import PanelHost, bind_panel_keys
from foveal.agent.terminal.output.panels import PickMenu, QuestionPanel, ScrolledRows, SwitchMenu
from foveal.agent.terminal.output.streaming import StreamingMarkdown
from foveal.agent.terminal.output.styled_text import (
    TAB_COLUMNS,
    Row,
    Span,
    ansi_text,
    bold,
    dim,
    row,
    rows_in_theme,
    terminal_theme,
    wrap_row,
)
from foveal.agent.terminal.user_input import Pastes, input_buffer, key_bindings
from foveal.agent.terminal.user_interface import MenuItem, Question
from foveal.agent.tools.todo import TodoItem
from foveal.core.engine.report import Report
from foveal.core.wire.safe_print import counted

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

MAX_INPUT_LINES: Final = 10
"""Lines of the input that are visible at once."""
MENU_LINES: Final = 6
"""Completions that are visible at once."""
MAX_ECHOED_LINES: Final = 8
"""Lines of a sent message that are printed."""
MAX_PRINTED_LINES: Final = 16
"""Lines of an answered question, or of a change, that are printed."""
MAX_CALL_LINES: Final = 4
"""Lines of the description of a call that are printed."""
MAX_INPUT_LINES_BELOW_PANEL: Final = 3
SMALL_TERMINAL_ROWS: Final = 16
"""In fewer rows, a panel leaves one line to the input and none to the live area."""
MENU_STYLE: Final = Style.from_dict(
    {
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bold reverse",
        "completion-menu.meta.completion": "bg:default fg:#808080",
        "completion-menu.meta.completion.current": "bg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:#808080",
    }
)


class Screen:
    """The `UserInterface` of a terminal."""

    can_ask = True

    def __init__(
        self,
        completer: Completer,
        *,
        on_submit: Callable[[str], None],
        on_interrupt: Callable[[], None],
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_busy` returns whether `on_interrupt` would stop something; `clock` times the presses of keys."""
        self.theme = terminal_theme()
        self.colours: bool = bool(self.theme.codes)
        self.is_unicode: bool = self.theme.is_unicode
        self.live: LiveArea = LiveArea()
        self.pastes: Pastes = Pastes()
        self.entry = input_buffer(completer)
        self._on_submit = on_submit
        self._is_busy = is_busy
        self._streaming = StreamingMarkdown(self.theme)
        self._report: Report | None = None
        self._sandbox: str | None = None
        self._warning = ""
        self._is_planning = False
        self.panels = PanelHost(self.entry, on_view_closed=self._write_held, clock=clock)
        self._held: list[str] = []
        """Output that waits while a view covers the screen."""
        self._ends_with_blank_line = True
        """The last printed line is empty."""
        self._has_printed_answer = False
        """A part of the current answer is printed."""
        self._message = ""
        """The message of the running turn."""
        self._edited: asyncio.Future[str] | None = None
        """The line that the user edits for a question, if any."""
        self._running: dict[str, str] = {}
        """What the running calls do, by their ids."""
        self._outputs: dict[str, Sequence[str]] = {}
        """The last lines of each running call that reports them."""
        self._expected_change: Sequence[Row] = ()
        """What the running call changes, if it was not asked about."""
        keys = key_bindings(self, on_interrupt)
        bind_panel_keys(keys, self.panels, self.entry)
        self.app: Application[None] = Application(
            layout=Layout(self._container(), focused_element=self.entry),
            key_bindings=keys,
            style=MENU_STYLE,
            color_depth=None if self.colours else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            after_render=self.panels.after_render,
        )
        self.panels.app = self.app
        self.app.key_processor.before_key_press += self.panels.key_arrived
        # The layout does not depend on the cursor position, so the terminal is not queried for it.
        self.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    # ── Layout ───────────────────────────────────────────────────────────────────────────────────────

    def _container(self) -> FloatContainer:
        live = Window(FormattedTextControl(self._live), dont_extend_height=True, wrap_lines=False)
        panel = self.panels.window = Window(
            FormattedTextControl(self._panel, focusable=True, show_cursor=False), dont_extend_height=True
        )
        entry = Window(
            BufferControl(
                self.entry, input_processors=[TabsProcessor(tabstop=TAB_COLUMNS, char1=" ", char2=" ")]
            ),
            height=self._entry_height,
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=self._prefix,
        )
        bottom = Window(FormattedTextControl(self._status), height=1, dont_extend_height=True)
        has_live = Condition(lambda: not self.panels.is_viewing and bool(self._live_text()))
        has_panel = Condition(lambda: self.panels.panel is not None)
        has_entry = Condition(lambda: not self.panels.hides_entry)
        has_status = Condition(lambda: not self.panels.is_viewing)
        shown = ((live, has_live), (panel, has_panel), (entry, has_entry), (bottom, has_status))
        rows = [ConditionalContainer(window, condition) for window, condition in shown]
        menu = Float(CompletionsMenu(max_height=MENU_LINES), xcursor=True, ycursor=True)
        return FloatContainer(HSplit(rows, align=VerticalAlign.TOP), [menu])

    def _entry_height(self) -> Dimension:
        if self.panels.panel is not None:
            return Dimension(min=1, max=self._lines_below_panel)
        completing = self.entry.complete_state is not None and bool(self.entry.complete_state.completions)
        return Dimension(min=MENU_LINES + 1 if completing else 1, max=max(MAX_INPUT_LINES, MENU_LINES + 1))

    @property
    def _lines_below_panel(self) -> int:
        return 1 if self._terminal_rows < SMALL_TERMINAL_ROWS else MAX_INPUT_LINES_BELOW_PANEL

    def _prefix(self, line: int, wrapped: int) -> AnyFormattedText:
        prompt = (
            row(Span("plan", "fair"), Span(" › ", "accent"))
            if self._is_planning
            else row(Span("› ", "accent"))
        )
        return "  " if line or wrapped else self._ansi([prompt])

    def _status(self) -> AnyFormattedText:
        if self._report is None:
            return self._ansi([row(dim(" opening …"))])
        return self._ansi(
            [status_row(self._report, width=self.width - 1, sandbox=self._sandbox, warning=self._warning)]
        )

    def _live(self) -> AnyFormattedText:
        return ANSI(self._live_text())

    def _live_text(self) -> str:
        is_asking = self.panels.panel is not None
        if is_asking and self._terminal_rows < SMALL_TERMINAL_ROWS:
            return ""
        live_rows = self.live.rows(
            width=self.width - 1,
            height=self._terminal_rows,
            can_stop=self._is_busy(),
            is_asking=is_asking,
        )
        rows = ansi_text(live_rows, width=self.width - 1, theme=self.theme)
        height = max(3, self._terminal_rows - rows.count("\n") - MAX_INPUT_LINES - 3)
        lines = [] if is_asking else self.live.answer.split("\n")[-height - 1 :]
        return ("\n".join(lines) + rows).rstrip("\n")

    def _panel(self) -> AnyFormattedText:
        """Return the panel, in the rows that the other parts of the screen leave."""
        height = self._terminal_rows
        if not self.panels.is_viewing:
            live = self._live_text()
            entry = self._lines_below_panel if self.entry.text else 1
            height -= (live.count("\n") + 1 if live else 0) + entry + 1
        rows = self.panels.rows(width=self.width - 1, height=height)
        return ANSI(ansi_text(rows[:height], width=self.width - 1, theme=self.theme).removesuffix("\n"))

    @property
    def _terminal_rows(self) -> int:
        return self.app.output.get_size().rows

    def _ansi(self, rows: Sequence[Row]) -> ANSI:
        return ANSI(ansi_text(rows, theme=self.theme).rstrip("\n"))

    @property
    def width(self) -> int:
        return max(20, self.app.output.get_size().columns)

    # ── Printing ─────────────────────────────────────────────────────────────────────────────────────

    def write(self, text: str) -> None:
        """Print safe text above the live area; it ends with a newline."""
        if not text:
            return
        self._ends_with_blank_line = text.endswith("\n\n") or text == "\n"
        if self.panels.is_viewing:
            self._held.append(text)
            return
        output = self.app.output
        if self.app.is_running:
            self.app.renderer.erase()
        output.write_raw(text)
        output.flush()
        self.app.invalidate()

    def _write_held(self) -> None:
        held, self._held = "".join(self._held), []
        self.write(held)

    def ensure_blank_line(self) -> None:
        """Print an empty line, unless the last line is empty."""
        if not self._ends_with_blank_line:
            self.write("\n")

    def print_rows(self, rows: Sequence[Row], *, cut: bool = False) -> None:
        """Print rows: those of tools are cut to the width, all others are wrapped at words."""
        width = self.width - 1
        rows = rows_in_theme(rows, self.theme)
        if not cut:
            rows = [line for parts in rows for line in wrap_row(parts, width)]
        self.write(ansi_text(rows, width=width, theme=self.theme))

    def show(self, rows: Sequence[Row]) -> None:
        self.ensure_blank_line()
        self.print_rows([*rows, row()])

    def notify(self, rows: Sequence[Row]) -> None:
        self._print_rest_of_answer()
        self.print_rows(rows)

    def show_error(self, problem: str, *, code: str = "") -> None:
        self.ensure_blank_line()
        self.print_rows([row(Span(f"✗ {problem}", "bad")), row()])

    def show_past_answer(self, text: str) -> None:
        self.ensure_blank_line()
        self.write(StreamingMarkdown(self.theme).draw(text, width=self.width) + "\n")

    # ── A turn ───────────────────────────────────────────────────────────────────────────────────────

    def turn_started(self, text: str) -> None:
        self.live.start("sending")
        self._message, self._has_printed_answer = text, False
        self.app.invalidate()

    def agent_event(self, event: AgentEvent) -> None:
        match event:
            case UserMessageStored():
                self._print_message(self._message)
            case PromptReading(progress=progress):
                self.live.describe(f"reading: {progress.read:,} of {progress.total:,} tokens")
            case TextStreamed():
                self._stream(event)
            case ModelAnswered():
                self.notify(agent_event_rows(event))
                self.live.start("thinking")
            case RetryScheduled(wait=wait):
                self.notify(agent_event_rows(event))
                self.live.start(f"{wait.reason}, try {wait.attempt} of {wait.attempts}", wait_s=wait.seconds)
            case ToolCalling():
                self._print_rest_of_answer()
                self.ensure_blank_line()
                self.print_rows(self._first_wrapped(agent_event_rows(event)), cut=True)
                self._running[event.call.id] = event.what
                self.live.start(event.what)
            case ToolOutputStreamed():
                self._show_output(event)
            case ToolFinished():
                self._print_result(event)
            case _:
                self.notify(agent_event_rows(event))

    def _show_output(self, streamed: ToolOutputStreamed) -> None:
        """Show the last lines of the running call; of several, the last line of each."""
        self._outputs[streamed.call.id] = streamed.lines
        last = [lines[-1] for lines in self._outputs.values() if lines]
        self.live.set_output(streamed.lines if len(self._running) < 2 else last, seconds=streamed.seconds)
        self.app.invalidate()

    def expect_change(self, rows: Sequence[Row]) -> None:
        self._expected_change = rows

    def _print_result(self, finished: ToolFinished) -> None:
        self._print_rest_of_answer()
        if self._expected_change and not finished.error:
            self.print_lines(self._expected_change)
        self._expected_change = ()
        self.print_rows([*agent_event_rows(finished), row()], cut=True)
        self._running.pop(finished.call.id, None)
        self._outputs.pop(finished.call.id, None)
        self.live.start(next(iter(self._running.values()), "thinking"))

    def turn_ended(self) -> None:
        self._print_rest_of_answer()
        self._running.clear()
        self._outputs.clear()
        self.live.stop()
        self._has_printed_answer = False
        self.ensure_blank_line()

    def show_status(self, report: Report) -> None:
        self._report = report
        self.app.invalidate()

    def show_sandbox(self, name: str) -> None:
        """Name the sandbox of commands in the status line; "" if they run without one."""
        self._sandbox = name

    def show_warning(self, text: str) -> None:
        """Say in the status line what the model cannot do; "" if there is nothing to say."""
        self._warning = text

    def show_plan_mode(self, *, is_on: bool) -> None:
        self._is_planning = is_on
        self.app.invalidate()

    def show_todo(self, items: Sequence[TodoItem]) -> None:
        self.live.set_todo(items)
        self.app.invalidate()

    def show_progress(self, stage: str, detail: str = "") -> None:
        self.live.set_stage(stage, detail)
        self.app.invalidate()

    def _print_message(self, text: str) -> None:
        """Print the user's message, once it is stored."""
        lines = text.rstrip("\n").split("\n")
        shown = lines[1:MAX_ECHOED_LINES]
        rows = [row(Span("› ", "accent"), bold(lines[0])), *(row("  ", bold(line)) for line in shown)]
        if len(lines) > MAX_ECHOED_LINES:
            more = counted(len(lines) - MAX_ECHOED_LINES, "more line")
            rows.append(row(dim(f"  … {more}, {len(text):,} characters in all")))
        self.ensure_blank_line()
        self.write(ansi_text(rows, width=self.width - 1, theme=self.theme) + "\n")
        self.live.start("thinking")

    def _stream(self, streamed: TextStreamed) -> None:
        piece = streamed.piece
        if piece.kind != "text":
            activity = "thinking" if piece.kind == "thinking" else "writing a call"
            if self.live.activity != activity:
                self.live.start(activity)
            return
        if self.live.activity != "answering":
            self.live.start("answering")
        for block in self._streaming.feed(piece.text, width=self.width):
            self._print_block(block)
        if (preview := self._streaming.preview(width=self.width)) is not None:
            self.live.set_answer(preview)
            self.app.invalidate()

    def _print_rest_of_answer(self) -> None:
        self.live.set_answer("")
        self._print_block(self._streaming.end(width=self.width))

    def _print_block(self, drawn: str) -> None:
        if drawn:
            if self._has_printed_answer:
                self.ensure_blank_line()
            self.write(drawn)
            self._has_printed_answer = True

    # ── Input and questions ──────────────────────────────────────────────────────────────────────────

    async def ask(self, question: Question) -> str:
        self._print_rest_of_answer()
        details, remarks = (
            tuple(rows_in_theme(rows, self.theme)) for rows in (question.details, question.remarks)
        )
        text = self.theme.characters(question.text)
        panel = QuestionPanel(replace(question, text=text, details=details, remarks=remarks))
        await self.panels.run(panel)
        self.live.restart()
        self._print_answered(panel)
        return panel.answer

    def _print_answered(self, panel: QuestionPanel) -> None:
        question = panel.question
        label = next((choice.label for choice in question.choices if choice.key == panel.answer), "No")
        self.print_lines([*question.details, *question.remarks])
        self.print_rows([row(bold(question.text), dim(f" {label[:1].lower()}{label[1:]}"))])

    def _first_wrapped(self, rows: Sequence[Row]) -> list[Row]:
        """Return the first lines of rows that can be long, wrapped at words."""
        lines = [line for parts in rows for line in wrap_row(parts, self.width - 1)]
        return [*lines[:MAX_CALL_LINES], *([row(dim("  …"))] if len(lines) > MAX_CALL_LINES else [])]

    def print_lines(self, rows: Sequence[Row]) -> None:
        """Print the first lines of rows that can be many."""
        lines = ScrolledRows(rows).lines(self.width - 1)
        more = len(lines) - MAX_PRINTED_LINES
        rest = [row(dim(f"  … {counted(more, 'more line')}"))] if more > 0 else []
        self.print_rows([*lines[:MAX_PRINTED_LINES], *rest], cut=True)

    async def pick(self, title: str, items: Sequence[MenuItem], *, hint: str = "") -> str | None:
        menu = PickMenu(title, items, hint)
        await self.panels.run(menu)
        return menu.picked

    async def choose_many(
        self, title: str, items: Sequence[MenuItem], *, hint: str = ""
    ) -> frozenset[str] | None:
        menu = SwitchMenu(title, items, hint)
        await self.panels.run(menu)
        return menu.chosen

    async def edit_text(self, title: str, text: str) -> str:
        self.notify([row(bold(title))])
        self._edited = asyncio.get_running_loop().create_future()
        self.entry.reset()
        self.suggest_input(text)
        try:
            return await self._edited
        finally:
            self._edited = None

    def submit(self, line: str) -> None:
        """Handle a line that the user has entered: the answer to an open question, or new input."""
        text = self.pastes.expand(line)
        if self._edited is not None and not self._edited.done():
            self._edited.set_result(text.strip())
            return
        question = self.panels.question
        answer = question.answer_in(text) if question is not None else None
        if not self.panels.take_line(answer) and text.strip():
            self._on_submit(text)

    def suggest_input(self, text: str) -> None:
        if text and not self.entry.text:
            self.entry.insert_text(self.pastes.collapse(text))
            self.app.invalidate()

    def show_queue(self, texts: Sequence[str]) -> None:
        self.live.set_queued(texts)
        self.app.invalidate()
