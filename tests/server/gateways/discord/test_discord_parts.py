"""Answers as Markdown for Discord, in parts of at most 2,000 characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings

from foveal.server.gateways.discord.send import DISCORD_MESSAGE_LIMIT, discord_parts
from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.gateways.split_message import utf16
from support.markdown_answers import Answer, answers, numbered


def parts_of(markdown: str) -> list[str]:
    return discord_parts(ChannelMessage(text=markdown))


def code_lines(part: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)\n```$", part, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.split("\n")]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(answers())
def test_parts_fit_and_lose_no_word_no_address_and_no_code(answer: Answer) -> None:
    parts = parts_of(answer.markdown)
    assert all(0 < utf16(part) <= DISCORD_MESSAGE_LIMIT for part in parts)
    text = " ".join(parts)
    assert [word for word in answer.words if word not in text] == []
    assert [url for url in answer.urls if url not in text] == []
    code = [line for part in parts for line in code_lines(part) if line.startswith("code")]
    assert code == answer.code
    for part in parts:
        prose = re.sub(r"^```.*?^```$", "", part, flags=re.MULTILINE | re.DOTALL)
        assert prose.count("```") == 0
        assert prose.count("**") % 2 == prose.count("`") % 2 == 0
        assert prose.count("](") == prose.count("](https://example.org/")
    assert parts_of(answer.markdown) == parts


def test_an_answer_that_fits_is_sent_as_it_was_written() -> None:
    source = "Setext\n===\n* one\n\n\n* two `x`\n\n```\ncode\n```\n[a][1] <https://a.example>\n\n[1]: https://b.example"
    assert parts_of(source) == [source]
    assert parts_of("") == parts_of(" \n\n ") == []


def test_a_code_block_without_an_end_is_closed() -> None:
    assert parts_of("See:\n```py\ncode") == ["See:\n```py\ncode\n```"]


def test_a_table_becomes_a_code_block_with_aligned_columns() -> None:
    table = "Prices:\n\n| Name | Price |\n|---|--:|\n| **Tea** | 2 |\n| 珈琲 | 12.50 |\n\nEnd."
    assert parts_of(table) == [
        "Prices:\n\n```\nName | Price\n-----+------\nTea  |     2\n珈琲 | 12.50\n```\n\nEnd."
    ]


def test_a_wide_table_has_wrapped_cells_and_a_very_wide_one_becomes_records() -> None:
    words = " ".join(numbered(12, "word{}"))
    (wide,) = parts_of(f"| Name | Description |\n|---|---|\n| one | {words} |")
    assert wide == (
        "```\nName | Description\n-----+" + "-" * 54 + "\n"
        "one  | word1 word2 word3 word4 word5 word6 word7 word8 word9\n     | word10 word11 word12\n```"
    )
    names = "|".join(numbered(12, "name {}"))
    (records,) = parts_of(f"|{names}|\n|{'---|' * 12}\n|{'|'.join(numbered(12, 'value {}'))}|")
    assert records == "```\n" + "\n".join(numbered(12, "name {0}: value {0}")) + "\n```"


def test_each_part_of_a_table_has_its_header() -> None:
    parts = parts_of("| Name | Value |\n|---|---|\n" + "\n".join(numbered(200, "| n{0} | v{0} |")))
    assert len(parts) == 2
    assert all(
        part.startswith("```\nName | Value\n-----+------\n") and part.endswith("\n```") for part in parts
    )
    rows = [line for part in parts for line in code_lines(part)[2:]]
    assert rows == [f"{f'n{n}':4} | v{n:<4}".rstrip() for n in range(1, 201)]


def test_markup_that_spans_parts_is_closed_and_opened_again() -> None:
    words = " ".join(numbered(400, "word{}"))
    bold = parts_of(f"See **{words}** now.")
    assert [(part[:6], part[-6:]) for part in bold] == [("See **", "d262**"), ("**word", "* now.")]
    link = parts_of(f"[{words}](https://a.example/(x))")
    assert all(part.startswith("[word") and part.endswith("](<https://a.example/(x)>)") for part in link)
    code = parts_of(f"`` {words} ` ``")
    assert [(part[:3], part[-4:]) for part in code] == [("``w", "63``"), ("`` ", "` ``")]


def test_quotes_and_numbers_continue_in_the_next_part() -> None:
    quote = parts_of("> " + "\n> ".join(numbered(400, "line {}")))
    assert len(quote) == 3
    assert "\n".join(quote) == "\n".join(numbered(400, "> line {}"))
    items = parts_of("\n".join(numbered(400, "1. item")))
    assert len(items) == 2
    assert "\n".join(items) == "\n".join(numbered(400, "{}. item"))


def test_nested_lists_and_their_code_keep_their_form_in_a_long_answer() -> None:
    lists = "3. three\n   - inner\n     goes on\n\n   ```py\n   if x:\n       y()\n   ```\n4. four"
    (_, part) = parts_of("x" * 1_995 + "\n\n" + lists)
    assert part == "3. three\n   - inner\n     goes on\n\n```py\nif x:\n    y()\n```\n4. four"


@pytest.mark.parametrize(
    ("rest", "shown"),
    [("- 3 is", r"\- 3 is"), ("1986. Then", r"1986\. Then"), ("# 3", r"\# 3"), ("-3 is", "-3 is")],
)
def test_the_rest_of_a_paragraph_does_not_become_a_list(rest: str, shown: str) -> None:
    assert parts_of("x" * 1_999 + f" {rest}")[1] == shown


def test_a_footer_that_does_not_fit_becomes_its_own_part() -> None:
    message = ChannelMessage(text="x" * DISCORD_MESSAGE_LIMIT, footer="one\ntwo")
    assert discord_parts(message) == ["x" * DISCORD_MESSAGE_LIMIT, "-# one\n-# two"]
