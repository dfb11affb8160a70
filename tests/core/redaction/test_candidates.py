"""Candidates: the parts of a text that the search leaves contain every secret of the whole text."""

from __future__ import annotations

import re

import pytest
from bench.made_keys import MadeKey, made_forms, made_keys
from bench.secret_kinds import MadeSecret, made_secrets
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.core.redaction import find_secrets
from foveal.core.redaction.redact import (
    MARGIN_CHARS,
    Search,
    candidate_pattern,
    find_parts,
    re2_search,
    scan_part,
)
from foveal.core.redaction.secret_values import Secret
from support.made_secrets import made

CASES: list[MadeKey | MadeSecret] = [
    *made_keys(seed=11),
    *made_forms(seed=11),
    *made_secrets(30, seed=11),
]
PATTERN = re.compile(candidate_pattern())
"""Python reads the pattern as RE2 does, only slower, so that these tests do not need RE2."""


FORMS = [
    f"see M{made(24)}.{made(6)}.{made(38)} here",
    f"see {made(14)}.atlasv1.{made(60)} here",
    f"see {made(3)}8Q~{made(34)} here",
    f"see 123456789:{made(35)} here",
    f"see 123456789012345|{made(27)} here",
    f"see https://hooks.slack.com/services/T{made(8)}/B{made(8)}/{made(24)} here",
    f"see Bearer {made(24)} here",
    f"zendesk: {made(40)}",
    f"refresh key: {made(24)}",
    f"Authorization: Basic {made(18)}",
    f"-----BEGIN PRIVATE KEY-----\n{made(64)}\n{made(64)}\n-----END PRIVATE KEY-----",
    f"see postgres%3A%2F%2Fuser%3A{made(10)}%40host here",
]
"""Secrets of which only one alternative of the pattern finds each."""


def python_search(ascii_text: bytes, at: int) -> tuple[int, int] | None:
    hit = PATTERN.search(ascii_text, at)
    return hit.span() if hit else None


def secrets_of(text: str) -> list[Secret]:
    return [hit for hit, _ in scan_part(text, text.encode())]


def outside(text: str, search: Search) -> list[Secret]:
    """The secrets that no part contains."""
    parts = find_parts(text.encode(), search)
    if parts is None:
        return []
    return [
        secret
        for secret in secrets_of(text)
        if not any(start <= secret.start and secret.end <= end for start, end in parts)
    ]


def as_ascii(case: MadeKey | MadeSecret) -> str:
    return case.text.encode("ascii", "replace").decode()


def test_every_secret_is_in_a_part() -> None:
    assert [case for case in CASES if outside(as_ascii(case), python_search)] == []


@pytest.mark.parametrize("text", FORMS)
def test_a_secret_without_a_prefix_or_a_name_is_in_a_part(text: str) -> None:
    assert secrets_of(text)
    assert find_parts(text.encode(), python_search) is None  # the part is the whole text


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from(CASES), st.integers(0, 400), st.sampled_from(" \n\"'=:;,-_./\\x")),
        max_size=4,
    )
)
def test_every_secret_is_in_a_part_however_texts_are_cut_and_joined(
    parts: list[tuple[MadeKey | MadeSecret, int, str]],
) -> None:
    text = "".join(as_ascii(case)[at % len(case.text) :] + sign for case, at, sign in parts)
    assert outside(text, python_search) == []


@pytest.mark.parametrize(
    "text",
    [
        "sort_key: value_12\nprimary_key = id_12\npassword: ${DB_PASSWORD}\ntoken: str\n",
        "$ docker run -p 8080:80 -u root --api-key $KEY && curl -s https://h/1\n",
        '{"id": "123e4567-e89b-42d3-a456-426614174000", "max_tokens": 4096}\n',
        "\tat org.apache.catalina.core.StandardContextValve.invoke(StandardContextValve.java:97)\n",
    ],
)
def test_names_options_and_identifiers_alone_are_not_scanned(text: str) -> None:
    assert find_parts(text.encode(), python_search) == []


def test_parts_begin_and_end_at_blanks_and_do_not_overlap() -> None:
    line = "a line of words without a secret\n"
    gap = line * (5 * MARGIN_CHARS // len(line))
    text = gap + "DB_PASSWORD=hunter22\n" + gap + "DB_PASSWORD=hunter23\n" + gap
    parts = find_parts(text.encode(), python_search)
    assert parts is not None
    assert len(parts) == 2
    assert parts[0][1] < parts[1][0]
    assert all(text[start].isspace() and text[end].isspace() for start, end in parts)
    assert all(secrets_of(text[start:end]) for start, end in parts)


def test_a_text_without_blanks_is_scanned_whole() -> None:
    text = "x" * 5 * MARGIN_CHARS + ";DB_PASSWORD=hunter22;" + "x" * 5 * MARGIN_CHARS
    assert find_parts(text.encode(), python_search) is None


def test_without_a_search_a_text_is_scanned_whole() -> None:
    assert find_parts(b"a text", None) is None


@pytest.mark.long
def test_re2_finds_the_same_secrets() -> None:
    pytest.importorskip("re2")
    search = re2_search()
    assert search
    assert [case for case in CASES if outside(as_ascii(case), search)] == []
    filler = "a line of words without a secret\n" * 5_000
    for case in CASES[::120]:
        text = f"{filler}{as_ascii(case)}\n{filler}"
        assert find_secrets(text) == find_secrets(text[: len(text) - len(filler)])


def test_a_private_key_longer_than_a_part_is_redacted_whole() -> None:
    pytest.importorskip("re2")
    lines = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 5_000)
    filler = "a line of words without a secret\n" * 5_000
    text = f"{filler}-----BEGIN PRIVATE KEY-----\n{lines}\n{filler}"
    assert [(hit.start, hit.end) for hit in find_secrets(text)] == [
        (len(filler), len(text) - len(filler) - 1)
    ]
