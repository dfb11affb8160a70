"""Which models are known to read images and PDF files."""

from __future__ import annotations

import pytest

from foveal.server.gateways.chat_files import reads

BOTH = (
    "anthropic/claude-sonnet-4-5",
    "claude-3-5-sonnet-20241022",
    "openai/gpt-4o-mini",
    "gpt-4.1",
    "gpt-5.2",
    "o3",
    "o4-mini",
    "gemini/gemini-2.5-flash",
    "openrouter/google/gemini-3-pro@https://openrouter.ai/api/v1",
)
IMAGES = (
    "claude-3-haiku-20240307",
    "gpt-4-turbo",
    "grok-4",
    "meta-llama/llama-4-scout",
    "ollama/llama3.2-vision",
    "qwen2.5-vl:7b",
    "Qwen/Qwen3-VL-8B",
    "mistralai/pixtral-12b",
    "gemma3:12b",
)
TEXT = (
    "scripted/model",
    "deepseek/deepseek-chat-v3",
    "gpt-3.5-turbo",
    "gpt-4-0613",
    "o3-mini",
    "o1-mini",
    "claude-2.1",
    "local/qwen3-0.6b",
    "llama-3.3-70b",
    "gemma3:1b",
    "qwen3-coder",
    "mistral-small",
    "",
)


@pytest.mark.parametrize("name", BOTH)
def test_these_read_images_and_pdf_files(name: str) -> None:
    assert reads(name, "image")
    assert reads(name, "pdf")


@pytest.mark.parametrize("name", IMAGES)
def test_these_read_images(name: str) -> None:
    assert reads(name, "image")
    assert not reads(name, "pdf")


@pytest.mark.parametrize("name", TEXT)
def test_other_models_read_text(name: str) -> None:
    assert not reads(name, "image")
    assert not reads(name, "pdf")
