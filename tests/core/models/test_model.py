"""Model lookup: sources of values and their order, prices, and the bundled table."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foveal
from foveal.core.models.catalogue import (
    WINDOW_PATTERNS,
    CatalogueSnapshot,
    ModelLimits,
    ModelPrices,
    ModelRow,
    canonical_name,
    catalogue_snapshot,
    find_row,
    name_forms,
    window_pattern,
)
from foveal.core.models.model import DEFAULT_MAX_OUTPUT, DEFAULT_WINDOW, Model, model
from foveal.errors import BadSetting

UNKNOWN_NAME = "nobody/mystery-model"
DATA = Path(foveal.__file__).parent / "core" / "models"


# ── Sources of values ─────────────────────────────────────────────────────────────────────────────


def test_a_user_value_wins_over_the_snapshot() -> None:
    mine = model("gpt-4o", window=40_000, max_output=1_000, input_price=7.0, token_ratio=1.5, cache_ttl=60)
    assert (mine.window, mine.max_output, mine.input_price) == (40_000, 1_000, 7.0)
    assert (mine.token_ratio, mine.cache_ttl) == (1.5, 60)
    fields = ("window", "max_output", "input_price", "token_ratio", "cache_ttl")
    assert {mine.sources[field] for field in fields} == {"yours"}


def test_a_user_value_wins_over_a_learned_one() -> None:
    assert model("gpt-4o", window=40_000, learned_window=50_000).window == 40_000


def test_a_learned_limit_wins_over_the_snapshot() -> None:
    learned = model("gpt-4o", learned_window=32_768)
    assert (learned.window, learned.max_input, learned.sources["window"]) == (32_768, 32_768, "learned")


def test_the_snapshot_wins_over_the_name_pattern() -> None:
    old = model("gpt-4")
    assert (old.window, old.sources["window"]) == (8_192, "snapshot")
    assert window_pattern("gpt-4") == 128_000


def test_the_name_pattern_wins_over_the_default() -> None:
    future = model("claude-saga-99")
    assert (future.window, future.sources["window"]) == (200_000, "pattern")


def test_an_unknown_name_gets_128_000_tokens_marked_as_a_default() -> None:
    unknown = model(UNKNOWN_NAME)
    assert unknown == Model(
        name=UNKNOWN_NAME,
        window=128_000,
        max_input=128_000,
        max_output=DEFAULT_MAX_OUTPUT,
        input_price=None,
        cached_price=None,
        write_price=None,
        output_price=None,
        cache_ttl=300,
        cache_minimum=1_024,
        token_ratio=1.0,
        sources=dict.fromkeys(set(unknown.sources), "default"),
    )


@pytest.mark.parametrize("name", ["gpt-4.1", "claude-sonnet-4-5", UNKNOWN_NAME, "ollama/llama3.1:8b"])
def test_every_value_names_its_source(name: str) -> None:
    known = model(name)
    assert set(known.sources) == set(Model.__struct_fields__) - {"name", "sources"}
    assert set(known.sources.values()) <= {
        "yours",
        "learned",
        "snapshot",
        "pattern",
        "default",
        "family",
        "server",
    }


def test_equal_lookups_are_cached() -> None:
    assert model("gpt-4.1", window=50_000) is model("gpt-4.1", window=50_000)


# ── Dependent limits ─────────────────────────────────────────────────────────────────────


def test_a_larger_user_window_overrides_the_known_input_limit() -> None:
    wide = model("gpt-5", window=2_000_000)
    assert (wide.max_input, wide.sources["max_input"]) == (2_000_000, "yours")


def test_a_smaller_user_window_keeps_a_smaller_known_input_limit() -> None:
    assert model("gpt-5", window=300_000).max_input == model("gpt-5").max_input == 272_000
    assert model("gpt-5", window=100_000).max_input == 100_000


def test_a_user_input_limit_above_the_known_window_widens_the_window() -> None:
    wide = model("gpt-4o", max_input=500_000)
    assert (wide.window, wide.sources["window"]) == (500_000, "yours")


def test_a_known_output_limit_is_cut_to_a_small_window() -> None:
    assert model("gpt-4o", window=2_000).max_output == 2_000


def test_the_input_limit_is_the_smaller_of_max_input_and_window_without_reserve() -> None:
    known = model(UNKNOWN_NAME, window=100_000, max_input=80_000)
    assert known.input_limit(4_000) == 80_000
    assert known.input_limit(30_000) == 70_000


@settings(max_examples=50, deadline=None)
@given(window=st.integers(1, 10_000_000), reserve=st.integers(0, 20_000_000))
def test_the_input_limit_is_never_negative_nor_above_the_window(window: int, reserve: int) -> None:
    assert 0 <= model(UNKNOWN_NAME, window=window).input_limit(reserve) <= window


# ── Invalid values ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("window", -1),
        ("window", True),
        ("window", 128_000.0),
        ("window", "128000"),
        ("window", []),
        ("max_input", 0),
        ("max_output", 0),
        ("learned_window", -5),
        ("input_price", -0.1),
        ("cached_price", math.nan),
        ("write_price", math.inf),
        ("output_price", "3"),
        ("cache_ttl", -1),
        ("cache_minimum", 1.5),
        ("token_ratio", 0.0),
        ("token_ratio", 50),
    ],
)
def test_a_bad_value_raises_an_error_with_field_and_range(field: str, value: object) -> None:
    with pytest.raises(BadSetting, match=rf"{field} = .* is not allowed: a .*number from .* to ") as caught:
        model("gpt-4o", **{field: value})  # type: ignore[arg-type]
    assert (caught.value.field, repr(caught.value.value)) == (field, repr(value))


@pytest.mark.parametrize("name", ["", "  ", "/", None, 7])
def test_a_model_needs_a_name(name: object) -> None:
    with pytest.raises(BadSetting, match=r'a name such as "gpt-4\.1"'):
        model(name)  # type: ignore[arg-type]


def test_an_input_limit_above_the_user_window_raises_an_error() -> None:
    with pytest.raises(BadSetting, match=r"max_input = 200 is not allowed: at most the window, 100 tokens"):
        model(UNKNOWN_NAME, window=100, max_input=200)


def test_an_output_limit_above_the_window_raises_an_error_with_advice() -> None:
    with pytest.raises(BadSetting, match=r"at most the window, 128,000 tokens; give `window`"):
        model(UNKNOWN_NAME, max_output=200_000)


# ── Model names ─────────────────────────────────────────────────────────────────────────────────

EXPECTED_PATTERNS = {
    "claude-new": 200_000,
    "gpt-5-new": 400_000,
    "gpt-4.1-new": 1_000_000,
    "gpt-4-1-new": 1_000_000,
    "gpt-4o-new": 128_000,
    "gpt-4-turbo-new": 128_000,
    "gpt-4-new": 128_000,
    "gpt-4-1106-new": 128_000,
    "gemini-new": 1_000_000,
    "grok-4-new": 2_000_000,
    "grok-new": 131_072,
    "deepseek-v3-new": 163_840,
    "deepseek-chat-v3-new": 163_840,
    "deepseek-new": 128_000,
    "qwen3-new": 131_072,
    "qwen-new": 128_000,
    "qwen32-new": 128_000,
    "llama-4-new": 327_680,
    "Llama4_new": 327_680,
    "llama-new": 128_000,
    "mistral-large-new": 262_144,
    "mistral-new": 128_000,
    "mixtral-new": 128_000,
}


@pytest.mark.parametrize(("name", "window"), EXPECTED_PATTERNS.items())
def test_each_name_pattern_gives_its_window(name: str, window: int) -> None:
    assert window_pattern(name) == window
    assert window_pattern(f"some-gateway/{name}") == window


def test_a_specific_pattern_comes_before_a_general_one() -> None:
    texts = [text for text, _ in WINDOW_PATTERNS]
    hidden = [(early, late) for i, early in enumerate(texts) for late in texts[i + 1 :] if early in late]
    assert hidden == []


@pytest.mark.parametrize("name", ["ollama/mystery", "mistral/mystery", "mystery"])
def test_a_provider_name_matches_no_pattern(name: str) -> None:
    assert window_pattern(name) is None


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("GPT-4.1", "gpt-4.1"),
        ("gpt-4-1", "gpt-4.1"),
        ("gpt_4.1", "gpt-4.1"),
        ("openai/gpt-4.1", "gpt-4.1"),
        ("litellm_proxy/openai/gpt-4.1", "gpt-4.1"),
        ("gpt-4.1-2031-01-31", "gpt-4.1"),
        ("gpt-4.1-latest", "gpt-4.1"),
        ("ft:o3:my-org::abc123", "o3"),
        ("ft:gpt-4.1-2025-04-14:my-org::abc123", "ft:gpt-4.1-2025-04-14"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20310101", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20310101", "claude-sonnet-4-5"),
        ("anthropic.claude-sonnet-4-5-20310101-v1:0", "claude-sonnet-4-5"),
        ("nowhere.anthropic.claude-sonnet-4-5-20310101-v1:0", "claude-sonnet-4-5"),
        ("gateway/publishers/google/models/gemini-2.5-pro-preview-05-06", "gemini-2.5-pro"),
    ],
)
def test_a_decorated_name_finds_the_plain_model(name: str, same_as: str) -> None:
    found, plain = model(name), model(same_as)
    assert found.sources["window"] == "snapshot"
    assert (found.window, found.input_price) == (plain.window, plain.input_price)


def test_a_provider_may_have_its_own_price_for_the_same_model() -> None:
    plain, regional = model("claude-sonnet-4-5"), model("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
    assert regional.input_price == pytest.approx(3.3)
    assert plain.input_price == pytest.approx(3.0)
    assert model("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0").input_price == regional.input_price


def test_a_fine_tuned_model_has_its_own_price() -> None:
    tuned, plain = model("ft:gpt-4.1-2025-04-14:my-org::abc123"), model("gpt-4.1-2025-04-14")
    assert (tuned.input_price, plain.input_price) == (3.0, 2.0)
    assert tuned.window == plain.window


def test_a_local_model_costs_nothing_and_is_cached_while_resident() -> None:
    local = model("ollama/qwen2.5:7b")
    assert local.cost(input=1_000_000, cache_read=5, cache_write=5, output=1_000) == 0.0
    assert local.sources["input_price"] == "family"
    assert 0 < local.read_ratio < 0.1


def test_a_free_variant_costs_nothing() -> None:
    free = model("openrouter/deepseek/deepseek-chat-v3.1:free")
    assert (free.input_price, free.output_price, free.sources["input_price"]) == (0.0, 0.0, "pattern")
    assert free.window >= 32_768


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="aZ49./:-_@ ~é\n\0", max_size=40))
def test_any_name_gets_an_answer_or_a_bad_setting(name: str) -> None:
    if canonical_name(name):
        assert model(name).window > 0
    else:
        with pytest.raises(BadSetting):
            model(name)


@settings(max_examples=50, deadline=None)
@given(st.from_regex(r"[a-zA-Z0-9./:_@-]{1,40}", fullmatch=True))
def test_a_canonical_name_is_unchanged(name: str) -> None:
    assert canonical_name(canonical_name(name)) == canonical_name(name)


def test_the_most_specific_form_of_a_name_is_tried_first() -> None:
    tried = list(dict.fromkeys(name_forms("Azure/EU/gpt-4o-2024-08-06")))
    assert tried == [
        "azure/eu/gpt4o2024-08-06",
        "eu/gpt4o2024-08-06",
        "gpt4o2024-08-06",
        "gpt4o2024-08-06-instruct",
        "azure/eu/gpt4o",
        "eu/gpt4o",
        "gpt4o",
    ]


# ── Prices and caches ────────────────────────────────────────────────────────────────────────────────────

PRICED = model(UNKNOWN_NAME, input_price=2.0, cached_price=0.5, write_price=2.5, output_price=8.0)


def test_cost_adds_the_four_kinds_of_tokens() -> None:
    cost = PRICED.cost(input=1_000_000, cache_read=2_000_000, cache_write=400_000, output=500_000)
    assert cost == pytest.approx(2.0 + 1.0 + 1.0 + 4.0)


def test_a_cached_token_is_charged_once() -> None:
    prompt, cached = 10_000, 8_000
    cost = PRICED.cost(input=prompt - cached, cache_read=cached)
    assert cost == pytest.approx((2_000 * 2.0 + 8_000 * 0.5) / 1_000_000)


def test_zero_tokens_cost_zero_even_with_unknown_prices() -> None:
    assert model(UNKNOWN_NAME).cost() == 0.0


@pytest.mark.parametrize("kind", ["input", "cache_read", "cache_write", "output"])
def test_a_cost_is_unknown_if_a_needed_price_is(kind: str) -> None:
    assert model(UNKNOWN_NAME).cost(**{kind: 1}) is None


def test_a_price_that_is_not_needed_may_be_unknown() -> None:
    assert model(UNKNOWN_NAME, input_price=3.0).cost(input=1_000_000) == pytest.approx(3.0)


def test_an_unknown_provider_gets_no_cached_price() -> None:
    known = model(UNKNOWN_NAME, input_price=3.0)
    assert (known.cached_price, known.write_price) == (None, 3.0)
    assert (known.read_ratio, known.write_ratio) == (0.1, 1.0)


def test_ratios_are_relative_to_the_input_price() -> None:
    assert (PRICED.read_ratio, PRICED.write_ratio) == (0.25, 1.25)


def test_the_read_ratio_is_never_zero_because_callers_divide_by_it() -> None:
    assert model(UNKNOWN_NAME, input_price=2.0, cached_price=0.0).read_ratio == 0.01


def test_a_user_input_price_keeps_the_known_ratios() -> None:
    dear = model("claude-sonnet-4-5", input_price=30.0)
    assert dear.cached_price == pytest.approx(3.0)
    assert dear.write_price == pytest.approx(37.5)


@pytest.mark.parametrize(
    ("name", "read", "write", "ttl", "minimum"),
    [
        ("claude-saga-99", 0.1, 1.25, 300, 1_024),
        ("gpt-5-saga", 0.1, 1.0, 300, 1_024),
        ("gpt-5.9-saga", 0.1, 1.25, 300, 1_024),
        ("o9-saga", 0.1, 1.0, 300, 1_024),
        ("gemini-saga", 0.1, 1.0, 300, 2_048),
        ("deepseek-saga", 0.1, 1.0, 7_200, 64),
        ("vllm/saga", 0.01, 1.0, 3_600, 1),
        (UNKNOWN_NAME, 0.1, 1.0, 300, 1_024),
    ],
)
def test_each_family_has_its_cache_rule(name: str, read: float, write: float, ttl: int, minimum: int) -> None:
    known = model(name)
    assert (known.read_ratio, known.write_ratio) == (read, write)
    assert (known.cache_ttl, known.cache_minimum) == (ttl, minimum)
    assert known.sources["cache_ttl"] == ("default" if name == UNKNOWN_NAME else "family")


def test_a_family_fills_in_missing_cache_prices() -> None:
    known = model("claude-saga-99", input_price=10.0)
    assert known.cached_price == pytest.approx(1.0)
    assert known.write_price == pytest.approx(12.5)
    assert (known.sources["cached_price"], known.sources["write_price"]) == ("family", "family")


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("gpt-4.1", 1.0), ("deepseek-chat", 1.09), ("claude-opus-4-6", 1.25), (UNKNOWN_NAME, 1.0)],
)
def test_each_tokenizer_has_its_initial_ratio(name: str, ratio: float) -> None:
    assert model(name).token_ratio == ratio


# ── The bundled table ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "window", "max_output", "input_price"),
    [
        ("gpt-4.1", (1_000_000, 1_050_000), 32_768, 2.0),
        ("gpt-4o", (128_000, 128_000), 16_384, 2.5),
        ("claude-sonnet-4-5", (200_000, 1_000_000), 64_000, 3.0),
        ("gemini-2.5-pro", (1_000_000, 1_048_576), 65_535, 1.25),
        ("deepseek-chat", (64_000, 1_000_000), 8_192, 0.28),
    ],
)
def test_well_known_models_have_plausible_values(
    name: str, window: tuple[int, int], max_output: int, input_price: float
) -> None:
    known = model(name)
    assert window[0] <= known.window <= window[1]
    assert known.max_output == max_output
    assert known.input_price == input_price
    assert known.cached_price is not None
    assert known.output_price is not None
    assert known.cached_price < input_price < known.output_price
    assert {known.sources[field] for field in ("window", "max_output", "input_price")} == {"snapshot"}


def test_the_table_is_small_and_has_thousands_of_models() -> None:
    assert (DATA / "models.json.gz").stat().st_size <= 80 * 1_024
    assert len(catalogue_snapshot().rows()) > 5_000


def test_every_row_of_the_table_is_valid() -> None:
    def possible(row: ModelRow) -> bool:
        limits, prices = row.limits, row.prices
        window = limits.window or DEFAULT_WINDOW
        sizes = 2_048 <= window <= 20_000_000 and (limits.max_input or 0) < window
        cached = prices.cached is None or 0 < prices.cached <= (prices.input or 0)
        return sizes and cached and (limits.max_output or 0) <= window and (prices.input or 0) >= 0

    assert [name for name, row in catalogue_snapshot().rows().items() if not possible(row)] == []


def test_every_name_of_the_table_is_canonical_and_finds_its_own_row() -> None:
    rows = catalogue_snapshot().rows()
    assert [
        name for name in rows if canonical_name(name) != name or find_row(name, rows) is not rows[name]
    ] == []


def test_the_table_and_the_notice_name_the_packages_and_their_licences() -> None:
    text = (DATA / "NOTICE.md").read_text(encoding="utf-8")
    for package, version in catalogue_snapshot().packages.items():
        assert f"## {package} {version}" in text
    assert catalogue_snapshot().made in text
    assert text.count("Permission is hereby granted") == len(catalogue_snapshot().packages) == 3
    assert len(re.findall(r"^Copyright \(c\)", text, flags=re.MULTILINE)) == 3


def test_a_table_has_a_row_for_each_provider() -> None:
    table = CatalogueSnapshot(
        made="2026-01-01",
        packages={},
        sellers=["", "azure/eu"],
        limits=[ModelLimits(8_192)],
        prices=[ModelPrices(1.0), ModelPrices(2.0)],
        models={"gpt4": [0, 0, 0, 1, 0, 1]},
    )
    rows = {
        "gpt4": ModelRow(ModelLimits(8_192), ModelPrices(1.0)),
        "azure/eu/gpt4": ModelRow(ModelLimits(8_192), ModelPrices(2.0)),
    }
    assert table.rows() == rows
    assert find_row("azure/eu/gpt-4-0613", rows) == rows["azure/eu/gpt4"]


def test_import_does_not_read_the_table_or_optional_packages() -> None:
    code = (
        "import sys, foveal.core.models.model as m, foveal.core.models.catalogue as c\n"
        "assert c.catalogue_snapshot.cache_info().currsize == 0\n"
        "assert not {'toktok', 'apsw', 'openai', 'anthropic', 'pydantic'} & set(sys.modules)\n"
        "m.model('gpt-4.1')\n"
        "assert c.catalogue_snapshot.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "window", "source"),
    [
        ("ollama/qwen3", 4_096, "server"),
        ("ollama_chat/llama3.1:8b", 4_096, "server"),
        ("ollama/llama3.2:1b", 4_096, "server"),
        ("llama3.2:1b", 8_192, "server"),
        ("llama3.2:3b-instruct-q4_K_M", 8_192, "server"),
        ("vllm/Qwen3-8B", 131_072, "snapshot"),
        ("openrouter/meta-llama/llama-3.2-1b-instruct", 60_000, "snapshot"),
    ],
)
def test_a_window_is_that_of_the_server_where_it_is_smaller(name: str, window: int, source: str) -> None:
    found = model(name)
    assert (found.window, found.sources["window"]) == (window, source)
    assert model(name, window=32_000).window == 32_000


def test_a_window_that_was_learned_from_the_server_counts() -> None:
    assert model("ollama/qwen3", learned_window=16_384).window == 16_384
