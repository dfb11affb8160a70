"""The digest of a result: what it quotes of each kind, and its limits on any text."""

from __future__ import annotations

import json
import re
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.reduction.result_digest import (
    MAX_DIGEST_LINE_CHARS,
    MAX_DIGEST_LINES,
    MAX_HEAD_CHARS,
    MAX_TAIL_CHARS,
    digest_lines,
)

ORDER = {
    "id": "ORD-1042",
    "customer": {"name": "Ann Lee"},
    "items": [{"sku": f"S{i}", "qty": i} for i in range(12)],
    "total": 129.9,
}
PSQL = "\n".join([" id | name", "----+------", *(f" {i:2} | n{i}" for i in range(1, 41)), "(40 rows)"])
MAILS = "\n---\n".join(
    f"From: ann{i}@x.org\nTo: bob@x.org\nSubject: Invoice {i}\n\nDear Bob,\nplease pay {i} EUR. Thank you.\n"
    for i in range(3)
)
CHAT = "\n".join(f"[10:{i:02}] {'Ann' if i % 2 else 'Bob'}: ticket T-{i}" for i in range(4))
PAGE = (
    "<!doctype html><html><head><title>Ferries</title><style>p {color: red}</style></head><body>"
    "<h1>Ferries of Norway</h1><p>There are <b>130</b> ferries. They sail daily.</p>"
    "<h2>Prices</h2><p>Cars cost 120 &amp; more.</p></body></html>"
)
CODE = "1\timport os\n2\tclass Folder:\n3\t    def size(self):\n4\t        return 3\n5\t\n6\tx = size(\n"
PROSE = "It is mild in Oslo. Tomorrow will be dry. Rain is expected on Friday (4 mm)."


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            json.dumps(ORDER),
            "id: ORD-1042, total: 129.9, customer.name: Ann Lee, items: 12 elements, {sku: S0, qty: 0}, "
            "{sku: S11, qty: 11}, {sku: S1, qty: 1}, {sku: S2, qty: 2}",
        ),
        ('```json\n{"price": 1.50}\n```', "price: 1.50"),
        ('{"t": 1}\n{"t": 2}\n{"t": 3}', "3 elements, {t: 1}, {t: 3}, {t: 2}"),
        ("<order><id>A-7</id><total>19.50</total></order>", "id: A-7; total: 19.50"),
        ("a\tb\nx\t1\ny\t2", "a | b / x | 1 / y | 2 / 2 rows"),
        ('day,close\n1,"1,000"', 'day,close / 1,"1,000"'),
        ('day,open,close\n1,2,"1,000"', "day | open | close / 1 | 2 | 1,000 / 1 row"),
        (
            "NAME   AGE   OK\nweb-1  3d    yes\nweb-2  4d    no",
            "NAME | AGE | OK / web-1 | 3d | yes / web-2 | 4d | no / 2 rows",
        ),
        ("Place: Oslo\nWind: 3 m/s", "Place: Oslo; Wind: 3 m/s"),
        (
            "# Ferries\n\nThere are 130.\n\n## Prices\n\nCars cost 120.",
            "Ferries: There are 130. / Prices: Cars cost 120.",
        ),
        (PROSE, "It is mild in Oslo. / Rain is expected on Friday (4 mm). / Tomorrow will be dry."),
        (CODE, "class Folder:; def size(self):"),
        ("42", "42"),
        ("{}", "{}"),
    ],
)
def test_the_first_line_has_what_tells_most(text: str, first: str) -> None:
    assert next(digest_lines(text)) == first


def test_a_table_has_its_header_its_ends_and_its_count() -> None:
    first = next(digest_lines(PSQL))
    assert first.startswith("id | name / 1 | n1 / 40 | n40 / 40 rows")


def test_every_mail_has_a_line() -> None:
    assert list(digest_lines(MAILS)) == [
        f"From: ann{i}@x.org; Subject: Invoice {i}; Dear Bob, please pay {i} EUR.; To: bob@x.org"
        for i in (0, 2, 1)
    ]


def test_a_chat_shows_its_first_and_last_message_first() -> None:
    assert next(digest_lines(CHAT)) == (
        "[10:00] Bob: ticket T-0 / [10:03] Ann: ticket T-3 / [10:01] Ann: ticket T-1 / [10:02] Bob: ticket T-2"
    )


def test_a_web_page_has_its_title_and_headings() -> None:
    assert next(digest_lines(PAGE)) == (
        "Ferries / Ferries of Norway: There are 130 ferries. / Prices: Cars cost 120 & more."
    )


def test_a_long_string_inside_json_has_a_digest_of_its_own() -> None:
    text = json.dumps({"content": [{"type": "text", "text": MAILS}]})
    assert any("Subject: Invoice 2" in line for line in digest_lines(text))


def test_the_end_of_long_json_is_quoted() -> None:
    text = json.dumps({"rows": [{"id": i} for i in range(5_000)], "total": 98_765})
    lines = list(digest_lines(text))
    assert lines[0].startswith("total: 98765, rows: ")
    assert "total: 98765" in lines[1]


def test_values_inside_the_end_of_long_json_are_not_those_of_the_whole() -> None:
    rows = [{"id": i, "price": 1_000 + i} for i in range(5_000)]
    assert next(digest_lines(json.dumps({"rows": rows}))).startswith("rows: ")
    assert next(digest_lines(json.dumps({"rows": {"last": rows, "sum": 98_765}}))).startswith("rows.last: ")
    assert next(digest_lines(json.dumps(rows))).count("elements, {id: 0, ")


@pytest.mark.parametrize(
    ("value", "first"),
    [
        ({"customer": "Ann", "id": "O-7", "total": "1,250.00"}, "id: O-7, total: 1,250.00, customer: Ann"),
        (
            {"ok": True, "page": 2, "orderId": 1234567, "sum": 450},
            "orderId: 1234567, sum: 450, ok: true, page: 2",
        ),
        ({"at": 1763400000, "user_id": "u1", "group_id": "g1"}, "user_id: u1, at: 1763400000, group_id: g1"),
        ({"result": {"note": "new", "amount": 19.5}}, "result.amount: 19.5, result.note: new"),
    ],
)
def test_what_an_object_is_called_and_its_amounts_come_first(value: object, first: str) -> None:
    assert next(digest_lines(json.dumps(value))) == first


def test_the_last_row_of_a_long_table_is_quoted() -> None:
    text = "\n".join(["id,name,price", *(f"{i},n{i},{i}.5" for i in range(9_000))])
    assert next(digest_lines(text)).startswith("id | name | price / 0 | n0 | 0.5 / 8999 | n8999 | 8999.5 / ")


# ── Any text ─────────────────────────────────────────────────────────────────────────────────────────────

WORDS = st.from_regex(r"[a-zA-Zäß]{1,12}|[0-9]{1,6}(\.[0-9]{1,2})?", fullmatch=True)
SENTENCES = st.lists(WORDS, min_size=1, max_size=12).map(lambda words: " ".join(words) + ".")
CELLS = st.lists(st.lists(WORDS, min_size=3, max_size=3), min_size=1, max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | SENTENCES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=30,
)
KINDS = st.one_of(
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False)),
    *(
        CELLS.map(lambda rows, mark=mark: "\n".join(mark.join(row) for row in rows))
        for mark in (",", "\t", " | ", "   ")
    ),
    st.lists(st.tuples(WORDS, SENTENCES), min_size=1, max_size=20).map(
        lambda fields: "\n".join(f"{key}: {value}" for key, value in fields)
    ),
    st.lists(st.tuples(WORDS, SENTENCES), min_size=1, max_size=9).map(
        lambda parts: "\n\n".join(f"## {title}\n{text}" for title, text in parts)
    ),
    st.lists(st.tuples(WORDS, SENTENCES), min_size=1, max_size=9).map(
        lambda parts: "<html>" + "".join(f"<h2>{title}</h2><p>{text}</p>" for title, text in parts)
    ),
    st.lists(SENTENCES, min_size=1, max_size=30).map(" ".join),
)
HOSTILE = st.text(st.sampled_from('{}[]",:\\\n\t |<>/#=-;a1 é\x00\ud800\u2028'), max_size=400)
OWN_WORDS = re.compile(r"\b\d+\+? (?:rows?|elements?)\b")


@given(st.one_of(KINDS, st.text(max_size=500), HOSTILE))
def test_a_digest_keeps_its_limits(text: str) -> None:
    lines = list(digest_lines(text))
    assert bool(lines) == bool(text.strip())
    assert len(lines) <= MAX_DIGEST_LINES
    assert all(0 < len(line) <= MAX_DIGEST_LINE_CHARS and line.splitlines() == [line] for line in lines)
    assert lines == list(digest_lines(text))


@given(KINDS)
def test_what_a_digest_quotes_occurs_in_the_text(text: str) -> None:
    for line in digest_lines(text):
        quoted = OWN_WORDS.sub("", line)
        assert [word for word in re.findall(r"\w+", quoted) if word not in text] == []


@given(KINDS, st.integers(1, 200))
def test_the_middle_of_a_long_text_is_not_read(text: str, times: int) -> None:
    long = "\n".join([text] * times).strip()
    middle = long[MAX_HEAD_CHARS:-MAX_TAIL_CHARS]
    if middle:
        other = long[:MAX_HEAD_CHARS] + "ß" * len(middle) + long[-MAX_TAIL_CHARS:]
        assert list(digest_lines(other)) == list(digest_lines(long))


@pytest.mark.parametrize(
    "piece",
    [
        '"\\"',
        "{",
        "[",
        '{"a":',
        "<script",
        "<a ",
        "a: ",
        "a: b\n",
        "a=1\n",
        "{ ",
        "1\t",
        "  ",
        "a, b, c\n",
        '"',
        "# a\n",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    started = time.process_time()
    list(islice(digest_lines("x " + piece * 20_000), 3))
    list(digest_lines(piece * 20_000))
    assert time.process_time() - started < 1
