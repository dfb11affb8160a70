"""Coding agents, each with the settings of its page in `docs/coding-agents`.

`CODING_CLIENTS` lists them. `converse` has a conversation of several turns with the server at a URL, and returns
the last answer of each turn. `own_window` tells the client that its model has this window, so that it compacts its
own history and may fail in a turn; with 0 the client does not compact it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from support.npm_clients import CLAUDE_CODE, CODEX, Client, run_claude_code, run_client, run_codex

OPENCODE: Final = Client("opencode-ai", "1.18.18", "opencode")
PI: Final = Client("@mariozechner/pi-coding-agent", "0.73.1", "pi")
QWEN_CODE: Final = Client("@qwen-code/qwen-code", "0.24.4", "qwen")
CONTINUE: Final = Client("@continuedev/cli", "1.5.47", "cn")
AIDER: Final = Client("aider-chat", "0.86.2", "aider", "pypi")

MODEL: Final = "gpt-4.1"
KEY: Final = "sk-of-the-client"
UNLIMITED: Final = 10_000_000
"""A window that no conversation of a test fills."""


class Converse(Protocol):
    """Has a conversation with a server, and returns the last answer of each turn."""

    def __call__(self, home: Path, url: str, prompts: list[str], *, own_window: int) -> list[str]: ...


class CodingClient(NamedTuple):
    """A coding agent and a window that its requests fill soon."""

    name: str
    client: Client
    converse: Converse
    window: int
    has_tools: bool = True


def _turn_by_turn(run: Callable[..., str]) -> Converse:
    """Return a conversation in which each turn is a run of the program."""

    def converse(home: Path, url: str, prompts: list[str], *, own_window: int) -> list[str]:
        return [
            run(home, url, prompt, continued=turn > 0, own_window=own_window)
            for turn, prompt in enumerate(prompts)
        ]

    return converse


def _claude_code(
    home: Path, url: str, prompt: str, *, continued: bool, own_window: int, model: str = "claude-sonnet-4-5"
) -> str:
    own = (
        {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(own_window)} if own_window else {"DISABLE_AUTO_COMPACT": "1"}
    )
    own["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "32000"
    return run_claude_code(home, url, prompt, continued=continued, model=model, more=own)


def _codex(
    home: Path, url: str, prompt: str, *, continued: bool, own_window: int, is_built_in: bool = False
) -> str:
    window = own_window or UNLIMITED
    settings = f"model_context_window = {window}\nmodel_auto_compact_token_limit = {window * 9 // 10}\n"
    return run_codex(home, url, prompt, continued=continued, first=settings, is_built_in=is_built_in)


def opencode_settings(url: str, own_window: int) -> dict[str, Any]:
    """Return the settings of opencode, as its page shows them."""
    limits = {"limit": {"context": own_window or UNLIMITED, "output": 4_096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Foveal",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {MODEL: limits},
    }
    return {"provider": {"foveal": provider}, "compaction": {"auto": bool(own_window), "prune": False}}


def _opencode(home: Path, url: str, prompt: str, *, continued: bool, own_window: int) -> str:
    _write_json(home / ".config/opencode/opencode.json", opencode_settings(url, own_window))
    environment = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    arguments = ["run", "--auto", "-m", f"foveal/{MODEL}", *(["--continue"] if continued else []), prompt]
    return _last_line(run_client(OPENCODE, arguments, home, environment, may_fail=own_window > 0))


def pi_settings(url: str, own_window: int) -> dict[str, Any]:
    """Return the models of pi, as its section shows them."""
    model = {"id": MODEL, "contextWindow": own_window or UNLIMITED, "maxTokens": 4_096}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": KEY, "models": [model]}
    return {"providers": {"foveal": provider}}


def _pi(home: Path, url: str, prompt: str, *, continued: bool, own_window: int) -> str:
    _write_json(home / ".pi/agent/models.json", pi_settings(url, own_window))
    reserve = {"reserveTokens": 4_096, "keepRecentTokens": 4_096}
    _write_json(home / ".pi/agent/settings.json", {"compaction": {"enabled": bool(own_window), **reserve}})
    arguments = ["-p", *(["-c"] if continued else []), "--provider", "foveal", "--model", MODEL, prompt]
    return _last_line(run_client(PI, arguments, home, {"PI_OFFLINE": "1"}, may_fail=own_window > 0))


def qwen_code_settings(own_window: int) -> dict[str, Any]:
    """Return the settings of Qwen Code, as its section shows them."""
    generation = {"contextWindowSize": own_window or UNLIMITED, "samplingParams": {"max_tokens": 4_096}}
    return {"model": {"generationConfig": generation}}


def _qwen_code(home: Path, url: str, prompt: str, *, continued: bool, own_window: int) -> str:
    _write_json(home / ".qwen/settings.json", qwen_code_settings(own_window))
    environment = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
    arguments = ["--auth-type", "openai", "--yolo", *(["--continue"] if continued else []), "-p", prompt]
    return _last_line(run_client(QWEN_CODE, arguments, home, environment, may_fail=own_window > 0))


def continue_settings(url: str, own_window: int) -> dict[str, Any]:
    """Return the settings of Continue, as its section shows them."""
    options = {"contextLength": own_window or UNLIMITED, "maxTokens": 4_096}
    model = {
        "name": "foveal",
        "provider": "openai",
        "model": MODEL,
        "apiBase": f"{url}/v1",
        "apiKey": KEY,
        "roles": ["chat"],
        "defaultCompletionOptions": options,
    }
    return {"name": "foveal", "version": "1.0.0", "schema": "v1", "models": [model]}


def _continue(home: Path, url: str, prompt: str, *, continued: bool, own_window: int) -> str:
    settings = home / ".continue/config.yaml"  # JSON is YAML
    _write_json(settings, continue_settings(url, own_window))
    more = ["--resume"] if continued else []
    arguments = ["-p", "--auto", *more, "--config", str(settings), prompt]
    environment = {"CONTINUE_TELEMETRY_ENABLED": "0"}
    return _last_line(run_client(CONTINUE, arguments, home, environment, may_fail=own_window > 0))


def _aider(home: Path, url: str, prompts: list[str], *, own_window: int) -> list[str]:
    """Type the prompts into one run: aider begins each run with an empty history."""
    history = [] if own_window else ["--max-chat-history-tokens", str(UNLIMITED)]
    if own_window:
        sizes = {"max_input_tokens": own_window, "max_output_tokens": 4_096, "litellm_provider": "openai"}
        _write_json(home / "work/.aider.model.metadata.json", {f"openai/{MODEL}": sizes})
    arguments = ["--model", f"openai/{MODEL}", *history, "--no-git", "--yes-always", "--no-pretty"]
    arguments += ["--no-check-update", "--no-show-release-notes", "--analytics-disable", "--no-fancy-input"]
    arguments += ["--no-show-model-warnings", "--no-suggest-shell-commands", "notes.txt"]
    environment = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": KEY, "TERM": "dumb"}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    shown = run_client(AIDER, arguments, home, environment, typed="\n".join(prompts) + "\n")
    return [line.removeprefix("> ") for line in shown.splitlines() if line.endswith("is done.")]


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")


def _last_line(shown: str) -> str:
    return shown.strip().rpartition("\n")[2]


CODING_CLIENTS: Final = (
    # Claude Code begins with 21,000 tokens and reserves 32,000 for the answer; Codex begins with 9,000.
    CodingClient("Claude Code", CLAUDE_CODE, _turn_by_turn(_claude_code), 72_000),
    CodingClient("Codex", CODEX, _turn_by_turn(_codex), 24_000),
    CodingClient("opencode", OPENCODE, _turn_by_turn(_opencode), 28_000),
    CodingClient("pi", PI, _turn_by_turn(_pi), 20_000),
    CodingClient("Qwen Code", QWEN_CODE, _turn_by_turn(_qwen_code), 32_000),
    CodingClient("Continue", CONTINUE, _turn_by_turn(_continue), 20_000),
    CodingClient("aider", AIDER, _aider, 20_000, has_tools=False),
)

BOUND_CLAUDE_CODE: Final = CodingClient(
    "Claude Code with bound thinking",
    CLAUDE_CODE,
    _turn_by_turn(partial(_claude_code, model="claude-opus-5-5")),
    64_000,
)
"""Claude Code with a model that binds thinking to what comes before it."""
BUILT_IN_CODEX: Final = CodingClient(
    "Codex with its own provider", CODEX, _turn_by_turn(partial(_codex, is_built_in=True)), 20_000
)
"""Codex with the provider that has OpenAI compact the conversation."""
