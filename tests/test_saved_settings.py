"""A saved context continues with its settings, says when they change, and is not copied in other ways."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import foveal
from foveal.core.engine.settings import recorded_reserve
from foveal.core.log.events import Event, Opened
from foveal.errors import SettingsChanged
from foveal.stores import MemoryStore

HELLO = [{"role": "user", "content": "Why is CI red?"}]


def opened(ctx: foveal.Context) -> int:
    return sum(isinstance(event.fact, Opened) for event in ctx.log)


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 32_000},
        {"window": 32_000, "reserve": 5_000},
        {"policy": "rolling"},
        {"policy": foveal.policy("economy", keep_last=7)},
        {"policy": foveal.policy("handoff", name="ours", clip={"strategy": "tail", "lines": 9})},
        {"max_output_tokens": 3_000, "margin": 0.2},
        {"max_history_tokens": 9_000, "max_input_tokens": 50_000},
        {"tokenizer": "estimate", "max_images": 3, "max_media_bytes": 1_000},
    ],
)
def test_load_keeps_the_saved_settings(settings: dict[str, Any]) -> None:
    ctx = foveal.Context("gpt-4.1", **settings)
    ctx.fit(HELLO)
    again = foveal.Context.load(ctx.save())
    again.fit(HELLO)
    assert again.report() == ctx.report()
    assert again.max_tokens == ctx.max_tokens
    assert again.save() == ctx.save()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert foveal.Context.load(ctx.save(), **settings).save() == ctx.save()


def test_a_stored_context_keeps_them_too() -> None:
    async def main() -> None:
        async with MemoryStore() as store:
            await foveal.Context("gpt-4.1", window=32_000, policy="rolling").save_to(store, "ci")
            report = (await foveal.Context.load_from(store, "ci")).report()
            assert (report.window, report.policy) == (32_000, "rolling")

    asyncio.run(main())


def test_a_changed_setting_is_told_and_kept_from_then_on() -> None:
    saved = foveal.Context("gpt-4.1", window=32_000, reserve=2_000, policy="rolling").save()
    with pytest.warns(SettingsChanged, match=r"policy: rolling → economy") as told:
        ctx = foveal.Context.load(saved, window=16_000, policy="economy")
    assert "window: 32,000 → 16,000" in str(told[0].message)
    assert "reserve" not in str(told[0].message)
    assert told[0].filename == __file__
    assert opened(ctx) == 2
    report = foveal.Context.load(ctx.save()).report()
    assert (report.window, report.policy, report.totals["reserve"]) == (16_000, "economy", 2_000)


def test_a_default_that_changes_is_told_too() -> None:
    saved = foveal.Context("gpt-4.1", window=32_000).save()
    with pytest.warns(SettingsChanged, match=r"\(reserve: 4,000 → 1,500\)"):
        foveal.Context.load(saved, reserve=1_500)
    with pytest.warns(SettingsChanged, match=r"\(window: 32,000 → 16,000; reserve: 4,000 → 2,000\)"):
        foveal.Context.load(saved, window=16_000)
    with pytest.warns(SettingsChanged, match=r"model: gpt-4.1 → gpt-4.1-mini; window: 32,000 → 1,047,576"):
        foveal.Context.load(saved, "gpt-4.1-mini")


def reserves(log: list[Event]) -> list[int | None]:
    return [recorded_reserve(event.fact) for event in log if isinstance(event.fact, Opened)]


def test_another_reserve_of_a_session_is_recorded_when_it_goes_on() -> None:
    async def main() -> None:
        async with MemoryStore() as store:
            first = await foveal.Session.open(store, "ci", model="gpt-4.1")
            await first.append(foveal.UserSaid(content="Why is CI red?"))
            again = await foveal.Session.open(store, "ci", model="gpt-4.1", reserve=5_000)
            await again.report()
            assert reserves(await store.read("ci")) == [None]
            await again.append(foveal.ModelSaid(content="A test fails."))
            assert reserves(await store.read("ci")) == [None, 5_000]
            same = await foveal.Session.open(store, "ci", model="gpt-4.1", reserve=5_000)
            await same.append(foveal.UserSaid(content="Which?"))
            small = await foveal.Session.open(store, "ci", model="gpt-4.1", max_output_tokens=900)
            await small.append(foveal.UserSaid(content="Go on."))
            await foveal.Session.open(store, "ci", model="gpt-4.1-mini")
            assert reserves(await store.read("ci")) == [None, 5_000, 900, None]

    asyncio.run(main())


def test_a_window_is_not_kept_for_another_model() -> None:
    saved = foveal.Context("gpt-4.1", window=32_000, policy="rolling", reserve=1_000).save()
    with pytest.warns(SettingsChanged, match="model: gpt-4.1 → claude-sonnet-4-5"):
        report = foveal.Context.load(saved, "claude-sonnet-4-5").report()
    assert report.window == foveal.model("claude-sonnet-4-5").window
    assert (report.policy, report.totals["reserve"]) == ("rolling", 1_000)


def test_a_model_that_was_switched_to_keeps_its_window() -> None:
    ctx = foveal.Context("gpt-4.1", window=32_000, reserve=1_000)
    ctx.fit(HELLO)
    ctx.use("gpt-4.1-mini", window=16_000)
    ctx.fit(HELLO)
    report = foveal.Context.load(ctx.save()).report()
    assert (report.model, report.window, report.totals["reserve"]) == ("gpt-4.1-mini", 16_000, 1_000)


COPIES: list[Callable[[Any], Any]] = [pickle.dumps, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("copied", COPIES)
def test_a_context_is_saved_and_not_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"`save\(\)` .* `Context.load\(saved\)`"):
        copied(foveal.Context("gpt-4.1"))


@pytest.mark.parametrize("copied", COPIES)
def test_a_session_is_opened_again_and_not_copied(copied: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            assert repr(session) == "<Session demo>"
            with pytest.raises(TypeError, match=r"`Session\.open`"):
                copied(session)
            await session.close()

    asyncio.run(main())


def test_a_context_shows_how_full_it_is() -> None:
    ctx = foveal.Context("gpt-4.1", window=32_000)
    ctx.fit(HELLO)
    used = ctx.report().used
    assert repr(ctx) == f"<Context gpt-4.1: 2 events, {used:,} of 32,000 tokens, policy economy>"


def test_a_context_in_use_is_shown_without_waiting() -> None:
    shown: list[str] = []

    def summarise(request: foveal.SummaryRequest) -> str:
        thread = threading.Thread(target=lambda: shown.append(repr(ctx)))
        thread.start()
        thread.join(timeout=10)
        return "Parts 0 to 3 have a wrong bound."

    ctx = foveal.Context("gpt-4.1", summarise=summarise)
    for part in range(4):
        ctx.append({"role": "user", "content": f"Look at part {part}."})
        ctx.append({"role": "assistant", "content": f"Part {part} has a bound that is wrong. " * 60})
    ctx.compact()
    assert shown[0] == "<Context gpt-4.1: in use>"
