"""Answers in Telegram's format, in parts of at most 4,096 units and 100 entities."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from telegram import MessageEntity

from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.gateways.telegram.send import (
    REFUSED_PART,
    TELEGRAM_MESSAGE_LIMIT,
    FormattedText,
    telegram_parts,
)
from support.markdown_answers import Answer, answers, numbered

STYLES = (MessageEntity.BOLD, MessageEntity.ITALIC, MessageEntity.STRIKETHROUGH)


def parts_of(markdown: str, footer: str = "") -> list[FormattedText]:
    return telegram_parts(ChannelMessage(text=markdown, footer=footer))


def covered(part: FormattedText, entity: MessageEntity) -> str:
    units = part.text.encode("utf-16-le")
    return units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le")


def shown(part: FormattedText) -> list[tuple[str, str]]:
    return [(entity.type, covered(part, entity)) for entity in part.entities]


def assert_legal(part: FormattedText) -> None:
    """Check the rules for entities that the Bot API documents."""
    units = len(part.text.encode("utf-16-le")) // 2
    assert 0 < units <= TELEGRAM_MESSAGE_LIMIT
    assert len(part.entities) <= 100
    for number, entity in enumerate(part.entities):
        end = entity.offset + entity.length
        assert 0 <= entity.offset < end <= units
        assert covered(part, entity).strip()
        for other in part.entities[number + 1 :]:
            if other.offset >= end:
                continue
            assert other.offset + other.length <= end, "one contains the other"
            kinds = {entity.type, other.type}
            if not kinds & {MessageEntity.CODE, MessageEntity.PRE}:
                assert kinds & {*STYLES, MessageEntity.BLOCKQUOTE}
            else:
                assert entity.type == MessageEntity.BLOCKQUOTE


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(answers())
def test_parts_are_legal_and_lose_no_word_no_address_and_no_code(answer: Answer) -> None:
    parts = parts_of(answer.markdown)
    for part in parts:
        assert_legal(part)
    text = " ".join(part.text for part in parts)
    assert [word for word in answer.words if word not in text] == []
    links = {entity.url for part in parts for entity in part.entities}
    assert [url for url in answer.urls if url not in links and url not in text] == []
    monospace = [covered(part, entity) for part in parts for entity in part.entities if entity.type == "pre"]
    lines = [line for block in monospace for line in block.split("\n") if line.startswith("code")]
    assert lines == answer.code
    assert parts_of(answer.markdown) == parts


@given(st.text(alphabet="ab*_`~[](){}<>&#-+|>!\\/: \n😀1.\u0301", max_size=300))
def test_any_text_has_legal_parts(text: str) -> None:
    for part in parts_of(text):
        assert_legal(part)


def test_items_below_a_numbered_item_with_two_digits_need_three_spaces() -> None:
    written = "9. a\n   - b\n10. c\n   - d\n      - e\n11. f\n\n   - g\n12. h"
    (part,) = parts_of(written)
    assert part.text == "9. a\n  • b\n10. c\n  • d\n    • e\n11. f\n  • g\n12. h"
    code = "10. c\n   - d"
    assert parts_of(f"```\n{code}\n```")[0].text == code


def test_each_part_of_a_table_has_its_header_and_is_monospaced() -> None:
    rows = list(numbered(300, "| name {0} | value {0} |"))
    parts = parts_of("Values:\n\n| Name | Value |\n|:--|--:|\n" + "\n".join(rows) + "\n\nEnd.")
    header = "Name     |     Value\n---------+----------"
    assert [part.text.split("\n")[0] for part in parts] == [
        "Values:",
        "Name     |     Value",
        "Name     |     Value",
    ]
    tables = [covered(part, entity) for part in parts for entity in part.entities]
    assert all(table.startswith(header + "\n") for table in tables)
    body = [line for table in tables for line in table.split("\n")[2:]]
    assert body == [f"{f'name {n}':8} | {f'value {n}':>9}" for n in range(1, 301)]
    assert parts[-1].text.endswith("\n\nEnd.")


def test_more_than_100_links_go_on_in_the_next_part() -> None:
    parts = parts_of(" ".join(numbered(150, "*i* **[t{0}](https://a.example/{0})**")))
    links = [[entity.url for entity in part.entities if entity.url] for part in parts]
    urls = list(numbered(150, "https://a.example/{}"))
    assert links == [urls[:100], urls[100:]]


def test_bold_and_italics_are_left_out_before_links() -> None:
    (part,) = parts_of(" ".join(numbered(60, "*i{0}* **b{0}** [t{0}](https://a.example/{0})")))
    kinds = [entity.type for entity in part.entities]
    assert [kinds.count(kind) for kind in ("text_link", "bold", "italic")] == [60, 40, 0]


def test_bold_code_and_links_continue_in_the_next_part() -> None:
    words = " ".join(numbered(700, "word{}"))
    for source, kind in (
        (f"**{words}**", "bold"),
        (f"`{words}`", "code"),
        (f"[{words}](https://a.example)", "text_link"),
    ):
        parts = parts_of(source)
        assert [shown(part) for part in parts] == [[(kind, part.text)] for part in parts]
        assert " ".join(part.text for part in parts) == words


def test_a_quote_and_the_language_of_code_continue_in_the_next_part() -> None:
    quoted = parts_of("> " + "\n>\n> ".join(numbered(900, "line {}")))
    assert [shown(part) for part in quoted] == [[("blockquote", part.text)] for part in quoted]
    code = parts_of("```py\n" + "\n".join(numbered(900, "    line_{}()")) + "\n```")
    assert [[entity.language for entity in part.entities] for part in code] == [["py"]] * 4
    assert "\n".join(part.text for part in code) == "\n".join(numbered(900, "    line_{}()"))


def test_numbers_of_a_list_continue_in_the_next_part() -> None:
    parts = parts_of("\n".join(numbered(500, "1. item")))
    assert "\n".join(part.text for part in parts) == "\n".join(numbered(500, "{}. item"))


def test_a_heading_is_not_the_end_of_a_part() -> None:
    parts = parts_of("x" * 4_000 + "\n\n## Title\n\n" + "y" * 200)
    assert [part.text for part in parts] == ["x" * 4_000, "Title\n\n" + "y" * 200]


def test_a_link_on_code_is_a_link() -> None:
    (part,) = parts_of("[`run`](https://a.example) **bold `code` bold**")
    assert shown(part) == [("text_link", "run"), ("bold", "bold"), ("code", "code"), ("bold", "bold")]


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("[](https://a.example)", "https://a.example"),
        ("Text.\n\n[unused]: https://a.example", "Text.\n\nhttps://a.example"),
        ("| a |\n|---|\n| [b](https://a.example) |", "a\n-----\nb [1]\n\n[1] https://a.example"),
    ],
)
def test_an_address_that_no_entity_holds_is_written_out(markdown: str, text: str) -> None:
    assert [part.text for part in parts_of(markdown)] == [text]


def test_the_footer_follows_the_last_part_or_is_its_own() -> None:
    assert parts_of("**Text**", "one\ntwo") == [
        FormattedText("Text\n\none\ntwo", (MessageEntity(MessageEntity.BOLD, 0, 4),))
    ]
    assert parts_of("x" * 4_096, "footer") == [FormattedText("x" * 4_096), FormattedText("footer")]
    assert parts_of(" \n", "footer") == [FormattedText(f"{REFUSED_PART}\n\nfooter")]


def test_the_same_answer_has_the_same_parts_whatever_its_footer() -> None:
    text = "\n\n".join(numbered(900, "Paragraph {} of the answer."))
    assert parts_of(text, "one")[:-1] == parts_of(text, "another footer")[:-1]
