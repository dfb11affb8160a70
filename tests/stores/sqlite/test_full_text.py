"""The full-text index: what it finds, hostile queries, separate sessions, searchable facts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import (
    Call,
    Compacted,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Noted,
    Pinned,
    Text,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.core.wire.event_text import RECALL_PREFIX
from foveal.ports import Hit
from foveal.stores.search_words import MAX_PIECE_CHARS, split_into_pieces, text_to_index
from foveal.stores.sqlite import FullTextIndex, searchable_text


def index_of(*texts: str, session: int = 1) -> FullTextIndex:
    index = FullTextIndex(apsw.Connection(":memory:"))
    index.create()
    index.add(session, enumerate(texts))
    return index


def search_seqs(index: FullTextIndex, query: str, *, session: int = 1) -> list[int]:
    return [hit.seq for hit in index.search(session, query, 50)]


# ── Search results ──


def test_the_event_with_the_rarer_words_comes_first() -> None:
    index = index_of("the cat sat", "the cat sat on the zeppelin", "the dog", "a cat again")
    assert search_seqs(index, "Where is the zeppelin cat?")[0] == 1


def test_words_match_in_other_forms_cases_and_without_accents() -> None:
    index = index_of("I graduated in München", "unrelated", "something else")
    assert (
        search_seqs(index, "graduate")
        == search_seqs(index, "MUNCHEN")
        == search_seqs(index, "münchen")
        == [0]
    )


def test_stop_words_count_only_if_there_are_no_others() -> None:
    index = index_of("what did you do there when they were here", "the invoice number is 77", "unrelated")
    assert search_seqs(index, "what is the invoice?") == [1]
    assert 0 in search_seqs(index, "what did you do")


@pytest.mark.parametrize(
    "query",
    ["parse_http_request", "parse http request", "http", "parseHttpRequest", "http_tools.py", "tools.py",
     "src/net/http_tools.py", "E4012", "ERR-4012", "0xDEADBEEF", "550e8400-e29b-41d4-a716-446655440000"],
)  # fmt: skip
def test_identifiers_are_found_whole_and_by_their_parts(query: str) -> None:
    index = index_of(
        "nothing to see",
        "File src/net/http_tools.py, line 3, in parse_http_request, then parseHttpRequest: E4012 ERR-4012 "
        "at 0xDEADBEEF for 550e8400-e29b-41d4-a716-446655440000",
        "more of nothing",
    )
    assert search_seqs(index, query) == [1]


def test_a_whole_identifier_ranks_above_its_scattered_parts() -> None:
    index = index_of("a chat that we write", "see chat_write for that", "write, chat", "unrelated text")
    assert search_seqs(index, "chat_write")[0] == 1
    assert (
        search_seqs(index_of("the http parser of requests", "call httpParser now", "x"), "httpParser")[0] == 1
    )


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("我昨天在北京大学买了一本书", ["北京", "北京大学", "京", "书", "在北京大学"]),
        ("東京タワーに行きました", ["タワー", "東京", "京"]),
        ("서울에서 김치를 먹었다", ["서울", "김치"]),
        ("ฉันชอบกินข้าวผัดที่กรุงเทพ", ["ข้าวผัด", "กรุงเทพ"]),
    ],
)
def test_scripts_without_spaces_are_found_by_any_part(text: str, queries: list[str]) -> None:
    index = index_of("plain english", text, "別の文")
    assert [search_seqs(index, query)[:1] for query in queries] == [[1]] * len(queries)


def test_every_part_of_a_huge_text_is_indexed() -> None:
    text = " ".join(f"word{n}" for n in range(20_000)) + " needle"
    index = index_of("first", text, "last")
    assert search_seqs(index, "needle") == search_seqs(index, "word11111") == [1]
    assert index.last_indexed(1) == 2


def test_only_the_start_of_encoded_data_is_indexed() -> None:
    assert len(text_to_index("data " + "QUJD" * 5_000 + " end")) < 200


def test_the_newer_of_equal_events_comes_first() -> None:
    index = index_of(*["the same zebra"] * 9)
    assert search_seqs(index, "zebra") == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert index.search(1, "zebra", 3) == index.search(1, "zebra", 9)[:3]


@given(st.text(max_size=3 * MAX_PIECE_CHARS))
def test_pieces_are_short_and_join_to_the_text(text: str) -> None:
    cut = list(split_into_pieces(text))
    assert "".join(cut) == text
    assert all(0 < len(piece) <= MAX_PIECE_CHARS for piece in cut)


# ── Hostile queries ──

HOSTILE_QUERIES = [
    "", " ", '"', "'", '""', "AND", "a OR", "NOT", "NEAR(a b)", "a NEAR/2 b", "(", ")", "*", "a*", "^a",
    "words:cat", "- + ~", "{a b}: c", "\0", "cat\0dog", "🦓", "👨‍👩‍👧", "\ud800", "%_",
    "'; DROP TABLE foveal_text; --", "\n\n\t", "_", "._-",
    "a" * 1_000_000, "word " * 200_000, " ".join(map(str, range(20_000))), "猫" * 10_000, "\u0301" * 99, "İıſß",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE_QUERIES, ids=lambda query: ascii(query[:12]))
def test_any_query_is_safe(query: str) -> None:
    index = index_of("a cat", "words: dog 🦓", "\0 cat\0dog \ud800", query)
    assert isinstance(index.search(1, query, 10), list)
    assert 0 in search_seqs(index, "cat")


@given(st.text(st.characters(), max_size=60), st.text(st.characters(), max_size=60))
def test_any_text_can_be_indexed_and_searched(text: str, query: str) -> None:
    index = index_of(text, query)
    assert {hit.seq for hit in index.search(1, query, 9)} <= {0, 1}


@given(
    st.lists(
        st.sampled_from(["cat", "dog", "zebra", "lion", "parse_http", "fooBar", "12"]), min_size=1, max_size=8
    )
)
def test_a_text_is_found_by_each_of_its_words(words: list[str]) -> None:
    index = index_of("nothing", " ".join(words))
    assert all(search_seqs(index, word) == [1] for word in words)


# ── Sessions ──


def test_other_sessions_change_neither_hits_nor_scores() -> None:
    alone = index_of("my cat", "my dog")
    shared = index_of("my cat", "my dog")
    for other in (0, 2, 3, 2**20):
        shared.add(other, [(seq, "cat secret") for seq in range(20)])
    assert shared.search(1, "cat secret", 50) == alone.search(1, "cat secret", 50)
    assert search_seqs(shared, "secret", session=7) == []


def test_events_up_to_the_last_indexed_seq_are_skipped() -> None:
    index = index_of("one", "", "three")
    assert (index.last_indexed(1), index.last_indexed(2)) == (2, -1)
    index.add(1, [(1, "again"), (2, "three"), (3, "four three")])
    assert index.last_indexed(1) == 3
    assert search_seqs(index, "again") == []
    assert set(search_seqs(index, "three")) == {2, 3}


def test_texts_without_words_still_advance_the_last_seq() -> None:
    index = index_of()
    index.add(1, [(0, ""), (1, "  ")])
    assert index.last_indexed(1) == 1


def test_a_transaction_that_is_rolled_back_leaves_nothing() -> None:
    connection = apsw.Connection(":memory:")
    index = FullTextIndex(connection)
    index.create()
    with suppress(ZeroDivisionError), connection:
        index.add(1, [(0, "cat")])
        raise ZeroDivisionError
    assert (index.last_indexed(1), index.search(1, "cat", 5)) == (-1, [])


def test_removal_deletes_the_words_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    connection = apsw.Connection(str(path))
    connection.pragma("secure_delete", True)
    index = FullTextIndex(connection)
    with connection:
        index.create()
        index.add(1, [(seq, f"confidential{seq} zyzzyva " * 400) for seq in range(300)])
        index.add(2, [(seq, f"ordinary{seq} words") for seq in range(300)])
    with connection:
        index.remove(1)
    assert index.last_indexed(1) == -1
    assert search_seqs(index, "zyzzyva") == search_seqs(index, "confidential7") == []
    assert search_seqs(index, "ordinary7", session=2) == [7]
    connection.close()
    raw = path.read_bytes()
    assert b"zyzzyva" not in raw
    assert b"onfidential" not in raw
    assert b"ordinary" in raw


def test_a_removed_session_can_be_indexed_again() -> None:
    index = index_of("cat", "x " * 9_000)
    index.remove(1)
    index.remove(1)
    index.add(1, [(0, "dog")])
    assert (search_seqs(index, "cat"), search_seqs(index, "dog")) == ([], [0])


def test_creating_twice_keeps_the_content() -> None:
    index = index_of("cat")
    index.create()
    assert [hit.seq for hit in index.search(1, "cat", 5)] == [0]
    assert index.search(1, "cat", 0) == []
    assert isinstance(index.search(1, "cat", 1)[0], Hit)


# ── Searchable facts ──


def text_of(fact: object) -> str:
    return searchable_text(Event(3, fact))  # type: ignore[arg-type]


def test_messages_results_pins_and_summaries_are_searchable() -> None:
    call = Call(id="1", name="write_file", arguments='{"path": "a.py", "text": "def f():\\n    pass"}')
    assert text_of(UserSaid(content="hello")) == "hello"
    assert text_of(ModelSaid(content=(Text(text="now"), call))) == (
        "now\ncalls write_file\npath: a.py\ntext: def f():\n    pass"
    )
    assert text_of(ToolReturned(call_id="1", content="done")) == "done"
    assert text_of(Pinned(text="never push")) == "never push"
    assert text_of(Compacted(first=1, last=2, summary="we met")) == "we met"


def test_other_facts_are_not_searchable() -> None:
    rest = (Instructed(content="be kind"), Noted(text="aside"), Used(input=1), Masked(masks=()))
    assert [text_of(fact) for fact in rest] == [""] * 4


def test_recall_calls_and_answers_are_not_searchable() -> None:
    call = Call(id="1", name="recall_search", arguments='{"query": "zebra"}')
    assert text_of(ModelSaid(content=(Text(text="let me look"), call))) == "let me look"
    assert text_of(ToolReturned(call_id="1", name="recall_read", content="zebra")) == ""
    assert text_of(ToolReturned(call_id="1", content=f"{RECALL_PREFIX}1 messages]\n> zebra")) == ""
    assert (
        text_of(ModelSaid(content=(Call(id="1", name="f", arguments="not {json"),))) == "calls f\nnot {json"
    )
