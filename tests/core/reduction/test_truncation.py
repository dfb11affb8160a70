"""Truncation: what is shown, what the marker says, and that no limit is exceeded."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveal.core.reduction import Limits, Strategy, clip
from foveal.core.reduction.truncation import (
    BYTES_10K,
    TOKENS_8K,
    UNLIMITED,
    Clip,
    choose_limits,
    clip_parts,
    join_pieces,
)
from foveal.core.tokens.counter import Counter, Exact
from foveal.errors import BadSetting
from support.effort import examples


class Characters:
    """An exact counter: every character is a token."""

    name = "characters"
    exact = True

    def count(self, text: str) -> int:
        return len(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def head(self, text: str, tokens: int) -> int:
        return min(len(text), tokens)

    tail = head


class Quarters(Characters):
    """An estimate: four characters are a token, rounded up."""

    exact = False

    def count(self, text: str) -> int:
        return -(-len(text) // 4)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def head(self, text: str, tokens: int) -> int:
        return min(len(text), 4 * tokens)

    tail = head


EXACT, ESTIMATE = Characters(), Quarters()
MARKER = re.compile(
    r"\[foveal: kept ~?([\d,]+) of (~?)([\d,]+) tokens, ([\d,]+) of ([\d,]+) lines"
    r"(?:, ([\d,]+) of ([\d,]+) bytes)? \((head|tail|both|smart)\); whole text: e12\]"
)
STRATEGIES: tuple[Strategy, ...] = ("head", "tail", "both", "smart")
LOG = "".join(f"line {i} of an ordinary build, nothing to see\n" for i in range(2000))


def clip_of(text: str, limits: Limits, counter: Counter = EXACT) -> Clip:
    made = clip(text, limits, handle="e12", counter=counter)
    assert made is not None
    return made


def shown_text(text: str, limits: Limits, counter: Counter = EXACT) -> str:
    return join_pieces(text, clip_of(text, limits, counter).pieces)


def spans(made: Clip) -> list[tuple[int, int]]:
    return [piece for piece in made.pieces if not isinstance(piece, str)]


def lines_of(text: str) -> int:
    return text.count("\n") + (text[-1:] not in ("", "\n"))


def bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# ── 1. At and below the limit ──


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", ["", "a", "a\nb\n", "a\nb", "漢字 é 👩‍👩‍👧", "\udc80\x00"])
def test_a_text_exactly_at_every_limit_is_not_clipped_and_one_below_is(text: str, strategy: Strategy) -> None:
    at = Limits(strategy=strategy, tokens=len(text), bytes=bytes_of(text), lines=lines_of(text))
    assert clip(text, at, handle="e12", counter=EXACT) is None
    for unit in ("tokens", "bytes", "lines") if text else ():
        below = msgspec.structs.replace(at, **{unit: getattr(at, unit) - 1})
        assert clip(text, below, handle="e12", counter=EXACT) is not None


def test_without_any_limit_nothing_is_ever_clipped() -> None:
    assert clip(LOG, UNLIMITED, handle="e12", counter=ESTIMATE) is None


# ── 2. The size of the marker ──


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("unit", ["tokens", "bytes", "lines"])
@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_smaller_than_the_marker_shows_the_marker_only(
    strategy: Strategy, unit: str, limit: int
) -> None:
    made = clip_of(LOG, Limits(strategy=strategy, **{unit: limit}))
    assert len(made.pieces) == 1
    assert MARKER.fullmatch(join_pieces(LOG, made.pieces))
    assert (made.kept_tokens, made.kept_lines) == (0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_marker_counts_inside_every_limit(strategy: Strategy) -> None:
    for limits in (
        Limits(strategy=strategy, tokens=1000),
        Limits(strategy=strategy, bytes=1000),
        Limits(strategy=strategy, lines=10),
        Limits(strategy=strategy, tokens=900, bytes=700, lines=12),
    ):
        text = shown_text(LOG, limits)
        assert MARKER.search(text)
        assert len(text) <= (limits.tokens or 10**9)
        assert bytes_of(text) <= (limits.bytes or 10**9)
        assert lines_of(text) <= (limits.lines or 10**9)


# ── 3. Characters, overlap, zero shares ──


FAMILY = "👩‍👩‍👧‍👦"


@pytest.mark.parametrize("cluster", [FAMILY, "é̂", "👍🏽", "\ud83d\ude00", "✌️", "\r\n"])
@pytest.mark.parametrize("strategy", ["head", "tail", "both"])
def test_no_cut_goes_through_a_character_as_the_reader_sees_it(cluster: str, strategy: Strategy) -> None:
    text = cluster * 400
    for limit in range(300, 312):
        for start, end in spans(clip_of(text, Limits(strategy=strategy, tokens=limit))):
            assert start % len(cluster) == 0
            assert end % len(cluster) == 0


def test_no_cut_goes_through_a_flag() -> None:
    text = "x🇩🇪" * 400
    cuts = [
        at for limit in range(300, 312) for span in spans(clip_of(text, Limits(tokens=limit))) for at in span
    ]
    assert all(at % 3 != 2 for at in cuts)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_wide_characters_are_measured_in_bytes_without_splitting_one(strategy: Strategy) -> None:
    text = "漢字かな交じり文" * 500
    for limit in range(400, 406):
        part = shown_text(text, Limits(strategy=strategy, bytes=limit))
        assert 300 < len(part.encode()) <= limit


def test_head_and_tail_that_would_overlap_remove_nothing() -> None:
    text = "x\n" * 200
    assert clip(text, BYTES_10K, handle="e12", counter=EXACT) is None


def test_a_share_of_zero_or_one_leaves_out_the_head_or_the_tail() -> None:
    for strategy in ("both", "smart"):
        no_head = Limits(strategy=strategy, tokens=500, head_share=0)
        no_tail = Limits(strategy=strategy, tokens=500, head_share=1)
        assert shown_text(LOG, no_head).startswith("[foveal:")
        assert shown_text(LOG, no_tail).endswith("e12]")


# ── 4. Very long lines ──


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_enormous_line_is_cut_inside(strategy: Strategy) -> None:
    made = clip_of("x" * 300_000, Limits(strategy=strategy, tokens=1000))
    assert sum(b - a for a, b in spans(made)) > 800
    assert (made.kept_lines, made.total_lines) == (1, 1)


def test_smart_shows_a_window_around_an_error_inside_a_huge_line_of_json() -> None:
    record = {
        "before": "a" * 50_000,
        "message": "TypeError: cannot read x of undefined",
        "after": "b" * 50_000,
    }
    text = json.dumps({"id": 1}) + "\n" + json.dumps(record) + "\n" + json.dumps({"id": 2})
    part = shown_text(text, Limits(strategy="smart", tokens=2000))
    assert "TypeError: cannot read x of undefined" in part
    assert re.search(r"\[… [\d,]+ characters …\]", part)


# ── 5. The numbers in the marker ──


def test_the_marker_states_kept_and_total_the_strategy_and_the_handle() -> None:
    text = "".join(f"{i:04}\n" for i in range(1000))
    assert shown_text(text, Limits(strategy="both", lines=5)) == (
        "0000\n0001\n"
        "[foveal: kept 20 of 5,000 tokens, 4 of 1,000 lines (both); whole text: e12]\n"
        "0998\n0999\n"
    )


def test_a_limit_in_bytes_is_also_reported_in_bytes() -> None:
    text = "é\n" * 1000
    found = MARKER.search(shown_text(text, Limits(strategy="head", bytes=400)))
    assert found
    kept, total = int(found[6]), found[7]
    assert total == "3,000"
    assert kept == 3 * int(found[4])


def test_numbers_of_an_estimating_counter_are_marked() -> None:
    part = shown_text(LOG, Limits(strategy="head", tokens=200), ESTIMATE)
    assert re.search(r"kept ~\d+ of ~[\d,]+ tokens", part)


def test_a_very_long_text_is_estimated_and_marked_so() -> None:
    made = clip_of(LOG * 10, Limits(strategy="tail", tokens=1000))
    assert not made.exact
    assert made.total_tokens == len(LOG * 10)
    assert f"of ~{made.total_tokens:,} tokens" in join_pieces(LOG * 10, made.pieces)


def test_lines_kept_and_lines_in_gaps_add_up_to_all_lines() -> None:
    text = LOG.replace("line 700 of", "ERROR 700 of").replace("line 1300 of", "FAILED 1300 of")
    made = clip_of(text, Limits(strategy="smart", tokens=1500))
    gaps = [
        int(n.replace(",", "")) for n in re.findall(r"\[… ([\d,]+) lines …\]", join_pieces(text, made.pieces))
    ]
    first = spans(made)[0][1], spans(made)[1][0]
    assert made.kept_lines + sum(gaps) + text.count("\n", *first) == made.total_lines == 2000


# ── 6. No text is clipped twice ──


def test_a_recorded_clip_shows_the_same_text_without_counting_again() -> None:
    made = clip_of(LOG, BYTES_10K)
    reread = msgspec.json.decode(msgspec.json.encode(made), type=Clip)
    assert reread == made
    assert join_pieces(LOG, reread.pieces) == join_pieces(LOG, made.pieces)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_clipped_text_is_within_the_limits_and_not_clipped_again(strategy: Strategy) -> None:
    limits = Limits(strategy=strategy, tokens=1000, lines=20)
    assert clip(shown_text(LOG, limits), limits, handle="e12", counter=EXACT) is None


def test_a_marker_inside_a_text_is_treated_as_text() -> None:
    text = "[truncated]\n[foveal: kept 1 of 2 tokens, 1 of 2 lines (head); whole text: e99]\n" + LOG
    part = shown_text(text, Limits(strategy="head", tokens=1000))
    assert part.startswith(text[:100])
    assert part.endswith("whole text: e12]")


# ── 7. Several parts ──


def show_all(texts: Sequence[str], clips: Sequence[Clip | None]) -> list[str]:
    return [t if c is None else join_pieces(t, c.pieces) for t, c in zip(texts, clips, strict=True)]


def test_parts_share_one_budget_and_small_ones_stay_whole() -> None:
    texts = ["small", LOG, "also small", LOG]
    clips = clip_parts(texts, Limits(strategy="both", tokens=2000), handle="e12", counter=EXACT)
    assert [c is None for c in clips] == [True, False, True, False]
    assert 1700 < sum(map(len, show_all(texts, clips))) <= 2000


def test_parts_that_fit_together_are_unchanged() -> None:
    exactly = Limits(tokens=20, bytes=20, lines=2)
    assert clip_parts(["a" * 10, "b" * 10], exactly, handle="e12", counter=EXACT) == [None, None]
    assert clip_parts([], Limits(tokens=0), handle="e12", counter=EXACT) == []
    assert clip_parts(["", ""], Limits(tokens=0), handle="e12", counter=EXACT) == [None, None]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_parts_than_fit_are_left_out_whole_and_counted_once(strategy: Strategy) -> None:
    texts = [LOG[i : i + 3000] for i in range(100)]
    clips = clip_parts(texts, Limits(strategy=strategy, tokens=2000), handle="e12", counter=EXACT)
    parts = show_all(texts, clips)
    notices = [found for part in parts if (found := re.search(r"left out (\d+) of 100 parts", part))]
    assert len(notices) == 1
    assert int(notices[0][1]) == sum(part == "" for part in parts) + 1
    assert sum(map(len, parts)) <= 2000
    assert (parts[0] != "") or strategy == "tail"


# ── 8. Precedence of limits ──


def test_the_call_wins_over_the_tool_which_wins_over_the_default() -> None:
    tools = {"bash": TOKENS_8K}
    call = Limits(tokens=5)
    assert choose_limits(BYTES_10K, per_tool=tools, tool="bash", call=call) is call
    assert choose_limits(BYTES_10K, per_tool=tools, tool="bash", call=None) is TOKENS_8K
    assert choose_limits(BYTES_10K, per_tool=tools, tool="read", call=None) is BYTES_10K


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", -1), ("bytes", 1.5), ("lines", True), ("head_share", 1.01), ("head_share", float("nan")),
     ("strategy", "middle")],
)  # fmt: skip
def test_a_limit_outside_its_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadSetting) as caught:
        Limits(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


# ── The strategy smart ──


@pytest.mark.parametrize(
    "line",
    [
        "src/main.c:12:5: error: expected ';' before '}' token",
        "error[E0308]: mismatched types",
        "npm ERR! code ELIFECYCLE",
        "E       assert 1 == 2",
        "ValueError: invalid literal for int()",
        "FAILED tests/test_a.py::test_b - KeyError: 'x'",
        "thread 'main' panicked at src/main.rs:3:5:",
        "=========== 5 failed, 20 passed in 3.1s ===========",
        "BUILD FAILED in 3s",
        "Tests run: 42, Failures: 1, Errors: 0, Skipped: 0",
        "Ran 512 tests in 3.2s",
        "Process completed with exit code 2.",
        "\x1b[31mError\x1b[0m: Cannot find module 'x'",
        "2025-08-01T02:43:12.158Z ##[error]The job failed",
        "  ✕ adds numbers (3 ms)",
        "Segmentation fault (core dumped)",
        "warning: unused variable `x`",
    ],
)
def test_smart_finds_the_line_that_matters_in_the_middle(line: str) -> None:
    text = LOG + line + "\n" + LOG
    assert line + "\n" in shown_text(text, Limits(strategy="smart", tokens=2000))
    assert line not in shown_text(text, Limits(strategy="both", tokens=2000))


def test_smart_shows_the_last_line_of_a_traceback_whatever_its_name() -> None:
    frames = "".join(f'  File "a.py", line {i}, in f\n    f()\n' for i in range(200))
    text = LOG + "Traceback (most recent call last):\n" + frames + "pkg.Misconfigured: no such key\n" + LOG
    assert "pkg.Misconfigured: no such key\n" in shown_text(text, Limits(strategy="smart", tokens=2000))


def test_smart_shows_severe_lines_first_and_repeats_at_most_twice() -> None:
    noise = "".join(f"warning: thing {i} is deprecated\nERROR: retry {i} failed\n" for i in range(500))
    text = LOG + noise + "panic: index out of range\n" + noise + LOG
    part = shown_text(text, Limits(strategy="smart", tokens=1200))
    assert "panic: index out of range" in part
    assert part.count("ERROR: retry") == 2


def test_smart_gives_unused_middle_room_to_head_and_tail() -> None:
    assert clip_of(LOG, Limits(strategy="smart", tokens=2000)).kept_tokens > 1750


def test_cuts_are_at_line_ends_when_one_is_near() -> None:
    for strategy in STRATEGIES:
        for start, end in spans(clip_of(LOG, Limits(strategy=strategy, tokens=2000))):
            assert start == 0 or LOG[start - 1] == "\n"
            assert LOG[end - 1] == "\n"


# ── Properties ──

texts = st.one_of(
    st.text(max_size=400),
    st.lists(
        st.sampled_from(["", "x" * 700, "error: a", "5 failed", "漢字", FAMILY, "\ud83d", "\x00", "ok"])
    ).map("\n".join),
    st.text(alphabet="a \n\u0301\u200d👩é\r", max_size=2000),
)
some = st.one_of(st.none(), st.integers(0, 1500))
limits = st.builds(
    Limits,
    strategy=st.sampled_from(STRATEGIES),
    tokens=some,
    bytes=some,
    lines=st.one_of(st.none(), st.integers(0, 60)),
    head_share=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)


@examples(120)
@given(texts, limits, st.sampled_from([EXACT, ESTIMATE]))
@example("error: a\n" * 50, Limits(strategy="smart", lines=7), EXACT)
def test_every_clip_keeps_its_contract(text: str, limits: Limits, counter: Counter) -> None:
    made = clip(text, limits, handle="e12", counter=counter)
    assert made == clip(text, limits, handle="e12", counter=counter)
    sizes = (counter.count(text), bytes_of(text), lines_of(text))
    most = [10**9 if n is None else n for n in (limits.tokens, limits.bytes, limits.lines)]
    assert (made is None) == all(n <= m for n, m in zip(sizes, most, strict=True))
    if made is None:
        return
    edges = [at for span in spans(made) for at in span]
    assert all(a < b for a, b in spans(made))
    assert all(a <= b for a, b in pairwise([0, *edges, len(text)]))
    part = join_pieces(text, made.pieces)
    if spans(made):
        assert counter.count(part) <= most[0]
        assert bytes_of(part) <= most[1]
        assert lines_of(part) <= most[2]
    check_numbers(text, made, counter)


@examples(75)
@given(texts, st.sampled_from(STRATEGIES), st.integers(0, 400))
def test_a_clip_by_a_real_vocabulary_is_within_its_tokens(text: str, strategy: Strategy, tokens: int) -> None:
    pytest.importorskip("toktok")
    vocabulary = Exact()
    made = clip(text, Limits(strategy=strategy, tokens=tokens), handle="e12", counter=vocabulary)
    assert (made is None) == (vocabulary.count(text) <= tokens)
    if made is not None:
        kept = [vocabulary.count(text[a:b]) for a, b in spans(made)]
        assert (made.kept_tokens, made.total_tokens) == (sum(kept), vocabulary.count(text))
        assert not kept or vocabulary.count(join_pieces(text, made.pieces)) <= tokens


def check_numbers(text: str, made: Clip, counter: Counter) -> None:
    kept = [text[a:b] for a, b in spans(made)]
    assert made.total_lines == lines_of(text)
    assert made.total_tokens == counter.count(text)
    assert made.exact == counter.exact
    ends = [0, *(i + 1 for i, c in enumerate(text) if c == "\n"), len(text)]
    touched = [any(a < e and s < b for a, b in spans(made)) for s, e in pairwise(ends) if s < e]
    assert made.kept_lines == sum(touched)
    if counter.exact:
        assert made.kept_tokens == sum(map(len, kept))
    marker = next(m for piece in made.pieces if isinstance(piece, str) and (m := MARKER.search(piece)))
    numbers = [int(marker[i].replace(",", "")) for i in (1, 3, 4, 5)]
    assert numbers == [made.kept_tokens, made.total_tokens, made.kept_lines, made.total_lines]


@examples(50)
@given(st.lists(texts, max_size=8), limits)
def test_parts_together_stay_within_the_limits(texts: list[str], limits: Limits) -> None:
    clips = clip_parts(texts, limits, handle="e12", counter=EXACT)
    parts = show_all(texts, clips)
    if any(clips) and any(spans(c) for c in clips if c):
        assert sum(map(len, parts)) <= (10**9 if limits.tokens is None else limits.tokens)
        assert sum(map(bytes_of, parts)) <= (10**9 if limits.bytes is None else limits.bytes)
        assert sum(map(lines_of, parts)) <= (10**9 if limits.lines is None else limits.lines)
