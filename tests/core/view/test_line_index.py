"""The line index equals a search of everything that is shown, and reads each text once."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given

from foveal.core.log import Event, UserSaid
from foveal.core.tokens import MessageTokens
from foveal.core.view import advance
from foveal.core.view.fold import fold
from foveal.core.view.line_index import MAX_HOLDERS_PER_LINE, LineIndex, indexed_lines
from foveal.core.view.steps import ShownMessage
from foveal.core.view.view import View
from support.histories import ESTIMATE
from support.line_logs import LINES, line_logs

KEYS = {LINES[place]: key for place, key in indexed_lines(LINES)}


def found(view: View, *, before: int) -> dict[str, list[int]]:
    """Return the messages that the index offers for each line that it holds."""
    view.line_index.read_until(before)
    found = view.line_index.holders(((key, key) for key in KEYS.values()), before=before)
    return {line: list(found.get(key, ())) for line, key in KEYS.items()}


def shown(view: View, *, before: int) -> dict[str, list[int]]:
    """Return the newest messages of calls and results that show each of these lines as it was said."""
    holders: dict[str, list[int]] = {line: [] for line in KEYS}
    for step in view.steps:
        for message in step.shown_messages() if step.slots else ():
            lines = {line for text in message.verbatim_texts() for line in text.split("\n")}
            for line in lines & holders.keys():
                holders[line].append(message.seq)
    newest = {
        line: sorted((seq for seq in seqs if seq < before), reverse=True) for line, seqs in holders.items()
    }
    return {line: seqs[:MAX_HOLDERS_PER_LINE] for line, seqs in newest.items()}


def test_the_index_holds_about_every_fourth_line() -> None:
    lines = [f"{number:>6}  value of a table with fixed width" for number in range(4_000)]
    assert 0.1 < len(indexed_lines(LINES)) / len(LINES) < 0.5
    assert 0.15 < len(indexed_lines(lines)) / len(lines) < 0.35


def test_short_lines_are_not_indexed() -> None:
    assert indexed_lines(["", "}", "  end", "1234567"]) == []


@given(line_logs())
def test_holders_are_the_newest_messages_that_show_a_line(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        before = at + 1 if at % 3 else at // 2
        assert found(view, before=before) == shown(view, before=before)


@given(line_logs())
def test_a_folded_index_answers_as_one_that_was_advanced(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        found(view, before=at + 1)
    assert found(view, before=len(log)) == found(fold(log, MessageTokens(ESTIMATE)), before=len(log))


def test_a_text_is_read_once_and_only_when_it_is_needed() -> None:
    read: list[int] = []

    class Shown(NamedTuple):
        seq: int

        def verbatim_texts(self) -> list[str]:
            read.append(self.seq)
            return ["\n".join(LINES)]

    index = LineIndex()
    for seq in range(6):
        index.add(seq, Shown(seq))
    index.discard(2)
    assert read == []
    for until in (3, 3, 6, 6):
        index.read_until(until)
    assert read == [0, 1, 3, 4, 5]


def test_many_messages_are_read_with_those_that_came_together() -> None:
    index = LineIndex()
    for seq in range(16):
        index.add(seq, ShownMessage(seq, UserSaid(content="\n".join(LINES))))
    index.catch_up(is_quiet=False)
    assert not index._entries
    index.add(16, ShownMessage(16, UserSaid(content="\n".join(LINES))))
    index.catch_up(is_quiet=False)
    assert list(index._entries) == list(range(17))


@given(line_logs())
def test_catching_up_changes_no_answer(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        view.line_index.catch_up(is_quiet=at % 2 == 0)
        assert found(view, before=at + 1) == shown(view, before=at + 1)


def test_a_cut_does_not_wait_for_the_clean_up() -> None:
    index = LineIndex()
    for seq in range(200):
        text = "\n".join(f"line {number} of message {seq}, or so" for number in range(100))
        index.add(seq, ShownMessage(seq, UserSaid(content=text)))
    index.read_until(200)
    for seq in range(120):
        index.discard(seq)
    known = len(index._holders)
    index.read_until(200)
    index.catch_up(is_quiet=False)
    assert len(index._holders) == known
    index.catch_up(is_quiet=True)
    assert len(index._holders) < known // 2


def test_messages_that_left_take_no_memory_for_long() -> None:
    index = LineIndex()
    for seq in range(400):
        text = "\n".join(f"line {number} of message {seq}, or so" for number in range(100))
        index.add(seq, ShownMessage(seq, UserSaid(content=text)))
        index.read_until(seq + 1)
        index.catch_up(is_quiet=True)
        if seq >= 5:
            index.discard(seq - 5)
    one_message = len(indexed_lines([f"line {number} of message 0, or so" for number in range(100)]))
    assert len(index._holders) < 2_000 + 20 * one_message


def test_a_line_of_many_messages_has_the_newest_as_holders() -> None:
    (line, key), index = next(iter(KEYS.items())), LineIndex()
    for seq in range(30):
        index.add(seq, ShownMessage(seq, UserSaid(content=line)))
        index.read_until(seq + 1)
        newest = tuple(range(seq, max(-1, seq - MAX_HOLDERS_PER_LINE), -1))
        assert index.holders([(0, key)], before=seq + 1) == {0: newest}
    for seq in range(20, 29):
        index.discard(seq)
    assert index.holders([(0, key)], before=30) == {0: (29, 19, 18, 17)}
