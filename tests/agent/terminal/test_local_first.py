"""The first impression without an API key: the bundled model in a chat, and what is said where it does not run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from foveal.agent.terminal.factory import is_bundled, system_text
from foveal.core.log import Equipped, Instructed, Used, text_of
from foveal.errors import ProviderError
from foveal.providers import selection
from foveal.providers.local import download
from support.chat_project import ChatProject
from support.terminal import Terminal

CACHE = download.weights_folder(os.environ)
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("dasllama") is None or download.cached_file(download.QWEN_05B, CACHE) is None,
    reason="the bundled model is not on this machine",
)
NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), "")


@contextmanager
def first_chat(project: ChatProject) -> Iterator[Terminal]:
    """Open a chat from an empty home, in a project that has instructions, and ask the bundled model."""
    (project.folder / "AGENTS.md").write_text("Always answer in French.\n")
    (project.folder / ".git").mkdir()
    cache = {"XDG_CACHE_HOME": str(CACHE.parent.parent)}
    env = {"FOVEAL_PROVIDER": "", "OPENROUTER_API_KEY": "", "OPENAI_BASE_URL": "", **NO_KEYS, **cache}
    with project.terminal("--session", "s", env=env) as terminal:
        terminal.see("A small model on your machine")
        terminal.see("paste long texts: /context, /why TEXT, /undo a summary")
        terminal.see("set ANTHROPIC_API_KEY or OPENAI_API_KEY")
        terminal.see(lambda terminal: "sees no files" in terminal.bottom)
        terminal.enter("/tools")
        terminal.see("the model is offered no tools; /tools on offers them")
        terminal.enter("What is 2+2?")
        terminal.see(lambda t: "4" in t.text.partition("2+2?")[2].partition(" ctx ")[0], seconds=60)
        assert "trust" not in terminal.text
        yield terminal


@needs_model
def test_the_bundled_model_answers_from_an_empty_home_without_tools_and_instructions(
    project: ChatProject,
) -> None:
    with first_chat(project):
        pass  # the rest of the answer takes seconds
    facts = [event.fact for event in project.events()]
    assert [text_of(fact.content) for fact in facts if isinstance(fact, Instructed)] == [
        system_text(is_bundled=True)
    ]
    assert not any(isinstance(fact, Equipped) and bytes(fact.tools) != b"[]" for fact in facts)


@pytest.mark.soak
@needs_model
def test_the_second_turn_of_the_bundled_model_reads_only_what_is_new(project: ChatProject) -> None:
    with first_chat(project) as terminal:
        terminal.see("cache 0 %", seconds=60)
        terminal.enter("x = 1. " * 40 + "What is x?")  # it reads 128 tokens at once
        terminal.see("reading: ", seconds=60)
        terminal.see(
            lambda terminal: "cache" in terminal.bottom and "cache 0" not in terminal.bottom, seconds=60
        )
    first, second = (event.fact for event in project.events() if isinstance(event.fact, Used))
    # Its prefix comes from the server's prompt cache.
    assert second.cache_read >= first.prompt - 2


def test_only_models_that_foveal_downloads_count_as_bundled() -> None:
    environment = {"OPENAI_API_KEY": "sk-x"}
    names = ("local/qwen2.5-coder-0.5b", "openai/gpt-4.1", "ollama/qwen3")
    found = [is_bundled(selection.provider(name, environment=environment)) for name in names]
    assert found == [True, False, False]


def test_without_the_engine_the_error_names_keys_and_ollama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "LOCAL_ENGINE", "an_engine_that_is_not_installed")
    with pytest.raises(
        ProviderError, match=r"not installed \(pip install 'foveal\[local\]'\): set ANTHROPIC"
    ):
        selection.provider(None, environment={})
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ProviderError, match=r"does not run on macOS: set ANTHROPIC_API_KEY.*Ollama"):
        selection.provider(None, environment={})
