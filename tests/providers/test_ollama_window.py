"""The window that an Ollama server gives a model, asked from a local stand-in of the server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import foveal
from foveal.cli.__main__ import main
from foveal.config import load
from foveal.providers import selection
from foveal.providers.ollama_window import ask_ollama_window
from foveal.server import Service


class OllamaStandIn:
    """Answers `/api/ps` and `/api/show` as Ollama does, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.loaded: Any = []
        self.shown: Any = {}
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"models": stand_in.loaded})

            def do_POST(self) -> None:
                self._answer(stand_in.shown)

            def _answer(self, found: Any) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                stand_in.asked.append((self.path, json.loads(body) if body else None))
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.environment = {"OLLAMA_HOST": self.address}


@pytest.fixture
def ollama() -> Iterator[OllamaStandIn]:
    made = OllamaStandIn()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def window_of(ollama: OllamaStandIn, name: str = "ollama/qwen3", **more: Any) -> tuple[int, str]:
    provider = selection.provider(name, environment={**ollama.environment, **more})
    ask_ollama_window(provider)
    return provider.model.window, provider.model.sources["window"]


def test_a_loaded_model_has_the_window_that_it_was_loaded_with(ollama: OllamaStandIn) -> None:
    ollama.loaded = [
        {"name": "other:7b", "context_length": 1},
        {"name": "qwen3:latest", "context_length": 24_576},
    ]
    ollama.shown = {"parameters": "num_ctx 8192"}
    assert window_of(ollama) == (24_576, "asked")
    assert [path for path, _ in ollama.asked] == ["/api/ps"]


def test_a_model_that_is_not_loaded_has_its_own_num_ctx(ollama: OllamaStandIn) -> None:
    ollama.shown = {
        "parameters": 'temperature 0.6\nnum_ctx                        16384\nstop "<|im_end|>"',
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
    }
    assert window_of(ollama) == (16_384, "asked")
    assert ollama.asked == [("/api/ps", None), ("/api/show", {"model": "qwen3"})]
    ollama.shown["model_info"]["qwen3.context_length"] = 8_192
    assert window_of(ollama) == (8_192, "asked")


@pytest.mark.parametrize(
    "answer", [{}, [], None, b"not json", {"parameters": 5, "model_info": []}, {"model_info": {"x": "y"}}]
)
def test_without_a_known_number_the_default_of_ollama_counts(ollama: OllamaStandIn, answer: Any) -> None:
    ollama.loaded, ollama.shown = answer, answer
    assert window_of(ollama) == (4_096, "server")


def test_a_server_that_does_not_answer_is_no_error() -> None:
    provider = selection.provider("ollama/qwen3", environment={"OLLAMA_HOST": "127.0.0.1:9"})
    ask_ollama_window(provider)
    assert provider.model.window == 4_096


def test_a_window_that_is_set_counts_and_nothing_is_asked(ollama: OllamaStandIn) -> None:
    assert window_of(ollama, OLLAMA_CONTEXT_LENGTH="32768") == (32_768, "yours")
    assert foveal.model("ollama/qwen3").window == 4_096
    ask_ollama_window(
        selection.provider("vllm/qwen3", environment={"VLLM_BASE_URL": f"http://{ollama.address}"})
    )
    assert ollama.asked == []


def test_sessions_of_the_server_have_the_window(ollama: OllamaStandIn, tmp_path: Path) -> None:
    ollama.loaded = [{"model": "qwen3:latest", "context_length": 24_576}]

    async def window() -> int:
        config = load(tmp_path, flags={"model": "ollama/qwen3"}, environ={}, user_folder=tmp_path)
        async with Service.open(config, folder=tmp_path / "s", environment=ollama.environment) as service:
            return (await (await service.tenant("t").create("s")).report()).window

    assert asyncio.run(window()) == 24_576


def test_the_doctor_asks_the_server(
    ollama: OllamaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ollama.loaded = [{"name": "qwen3:latest", "context_length": 24_576}]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_HOST", ollama.address)
    monkeypatch.setenv("FOVEAL_MODEL", "ollama/qwen3")
    monkeypatch.delenv("OLLAMA_CONTEXT_LENGTH", raising=False)
    assert main(["doctor", "--json", "--no-project"]) == 0
    assert json.loads(capsys.readouterr().out)["window"] == "24,576 tokens (its server was asked)"
