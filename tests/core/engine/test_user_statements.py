"""Lines about the user's statements, as the card, the chat and the report print them."""

from __future__ import annotations

from foveal.core.engine.user_statements import ShownWhere, UserStatement, statement_lines


def said(seq: int, shown: ShownWhere = "verbatim", replaced_by: str = "") -> UserStatement:
    return UserStatement(
        handle=f"e{seq}", text=f"Rule {seq}.", kind="rule", replaced_by=replaced_by, shown=shown
    )


def handles(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("  e")]


def test_the_newest_are_listed_and_before_them_those_that_are_shown_nowhere() -> None:
    statements = [said(1, "nowhere"), said(2), said(3, replaced_by="e5"), said(4, "record"), said(5)]
    lines = statement_lines(statements, most=3)
    assert lines[0] == (
        "the user's statements: 4 hold (2 in their messages, 1 in a record, 1 shown nowhere); 1 replaced"
    )
    assert handles(lines) == ["e1", "e4", "e5"]
    assert lines[-1] == "  and 1 more: `statements()` lists all"
    assert handles(statement_lines(statements, most=9)) == ["e1", "e2", "e4", "e5"]


def test_of_many_that_are_shown_nowhere_the_newest_are_listed() -> None:
    lines = statement_lines([said(seq, "nowhere") for seq in range(9)] + [said(9)], most=3)
    assert handles(lines) == ["e6", "e7", "e8"]


def test_without_statements_there_is_no_line() -> None:
    assert statement_lines([], most=3) == []
