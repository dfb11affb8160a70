"""The coding agents that `foveal wrap` knows: how each is pointed at a server.

1. `started` returns arguments and environment of one run. They come before what the agent's own files say.
2. `settings` returns what is written to the agent's settings file for all later runs.
3. Both have the agent's own compaction off, because the server keeps each request inside the window.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from foveal.cli.wrap.settings_text import JsonSettings, SettingPath
from foveal.errors import FovealError

UNLIMITED_TOKENS: Final = 10_000_000
"""A window that no conversation fills."""
TOKEN_VARIABLE: Final = "FOVEAL_TOKEN"
TOKEN_HEADER: Final = "X-Foveal-Token"

Find = Callable[[SettingPath], str | None]
"""Returns the value of a setting in the agent's file as the user has written it, None if it is not set."""


class WrappedServer(NamedTuple):
    """A server as an agent reaches it."""

    url: str
    token: str = ""


class AgentRun(NamedTuple):
    """How an agent is started."""

    arguments: list[str]
    environment: dict[str, str]
    """Variables beside those of the user."""


class CodingAgent(Protocol):
    """A coding agent."""

    title: str
    program: str
    url_variables: tuple[str, ...]
    """The variables of the environment with which a user sets its addresses."""
    project_files: tuple[str, ...]
    """Settings files in the current folder, which come before that of the user; the last one wins."""

    def settings_file(self, environ: Mapping[str, str]) -> Path:
        """Return the user's settings file of the agent, which need not exist."""
        ...

    def own_urls(self, find: Find) -> dict[str, str]:
        """Return the addresses that the user has set in the file, by the variable of the server for them."""
        ...

    def settings(
        self, server: WrappedServer, find: Find, environ: Mapping[str, str]
    ) -> dict[SettingPath, str]:
        """Return the settings to write, each as the file writes it; raises `FovealError`."""
        ...

    def started(
        self, server: WrappedServer, arguments: Sequence[str], find: Find, environ: Mapping[str, str]
    ) -> AgentRun:
        """Return how to start the agent with the user's arguments; raises `FovealError`."""
        ...


def _found_urls(find: Find, places: Mapping[SettingPath, str]) -> dict[str, str]:
    found = {variable: _unquoted(find(path)) for path, variable in places.items()}
    return {variable: url for variable, url in found.items() if url.startswith(("http://", "https://"))}


def _unquoted(value: str | None) -> str:
    """Return a text of JSON, TOML or YAML without its quotes and without a comment after it."""
    text = value or ""
    if text[:1] in ('"', "'"):
        return text[1:].partition(text[0])[0]
    return text.partition(" #")[0].strip()


def _with_json(text: str, settings: Mapping[SettingPath, Any]) -> str:
    """Return a JSON text with more settings, without its comments."""
    format = JsonSettings()
    for path, value in settings.items():
        text = format.put(text, path, json.dumps(value))
    return json.dumps(format.values(text))


# ── Claude Code ──────────────────────────────────────────────────────────────────────────────────────────


class ClaudeCode:
    """Claude Code. Its settings file overrides the environment, so a run has its settings as an argument."""

    title = "Claude Code"
    program = "claude"
    url_variables: tuple[str, ...] = ("ANTHROPIC_BASE_URL",)
    project_files: tuple[str, ...] = (".claude/settings.json", ".claude/settings.local.json")

    def settings_file(self, environ: Mapping[str, str]) -> Path:
        return _folder(environ, "CLAUDE_CONFIG_DIR", ".claude") / "settings.json"

    def own_urls(self, find: Find) -> dict[str, str]:
        return _found_urls(find, {("env", "ANTHROPIC_BASE_URL"): "ANTHROPIC_BASE_URL"})

    def settings(
        self, server: WrappedServer, find: Find, environ: Mapping[str, str]
    ) -> dict[SettingPath, str]:
        headers = json.loads(find(("env", "ANTHROPIC_CUSTOM_HEADERS")) or '""')
        variables = self._variables(server, str(headers))
        return {("env", name): json.dumps(value) for name, value in variables.items()}

    def started(
        self, server: WrappedServer, arguments: Sequence[str], find: Find, environ: Mapping[str, str]
    ) -> AgentRun:
        headers = json.loads(find(("env", "ANTHROPIC_CUSTOM_HEADERS")) or '""')
        variables = self._variables(server, headers or environ.get("ANTHROPIC_CUSTOM_HEADERS", ""))
        given, others = _option(arguments, "--settings")
        if given and not given.lstrip().startswith("{"):
            given = Path(given).read_text("utf-8")
        own = _with_json(given, {("env", name): value for name, value in variables.items()})
        return AgentRun(["--settings", own, *others], variables)

    def _variables(self, server: WrappedServer, headers: str) -> dict[str, str]:
        variables = {"ANTHROPIC_BASE_URL": server.url, "DISABLE_AUTO_COMPACT": "1"}
        if server.token:
            lines = [line for line in headers.splitlines() if not line.startswith(TOKEN_HEADER)]
            lines.append(f"{TOKEN_HEADER}: {server.token}")
            variables["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(lines)
        return variables


def _option(arguments: Sequence[str], name: str) -> tuple[str, list[str]]:
    """Return the last value of an option, and the arguments without it."""
    value, others, rest = "", [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word == name and rest:
            value = rest.pop(0)
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
        else:
            others.append(word)
            if word == "--":
                return value, others + rest
    return value, others


def _folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    return Path(environ.get(variable) or Path(environ.get("HOME") or Path.home()) / default)


# ── Codex ────────────────────────────────────────────────────────────────────────────────────────────────


class Codex:
    """Codex, with a provider `foveal` that has the key of the user's own provider."""

    title = "Codex"
    program = "codex"
    url_variables: tuple[str, ...] = ("OPENAI_BASE_URL",)
    project_files: tuple[str, ...] = ()

    def settings_file(self, environ: Mapping[str, str]) -> Path:
        return _folder(environ, "CODEX_HOME", ".codex") / "config.toml"

    def own_urls(self, find: Find) -> dict[str, str]:
        own = self._own_provider(find)
        place = ("model_providers", own, "base_url") if own else ("openai_base_url",)
        return _found_urls(find, {place: "OPENAI_BASE_URL"})

    def settings(
        self, server: WrappedServer, find: Find, environ: Mapping[str, str]
    ) -> dict[SettingPath, str]:
        top = {"model_provider": "foveal", "model_context_window": UNLIMITED_TOKENS}
        top["model_auto_compact_token_limit"] = UNLIMITED_TOKENS * 9 // 10
        provider = {"name": "Foveal", "base_url": f"{server.url}/v1"} | self._key(find, environ)
        provider |= {"wire_api": "responses", "supports_websockets": False}
        settings: dict[SettingPath, str] = {(name,): json.dumps(value) for name, value in top.items()}
        table = ("model_providers", "foveal")
        settings |= {(*table, name): json.dumps(value) for name, value in provider.items()}
        if server.token:
            settings[*table, "env_http_headers"] = f'{{"{TOKEN_HEADER}" = "{TOKEN_VARIABLE}"}}'
        return settings

    def started(
        self, server: WrappedServer, arguments: Sequence[str], find: Find, environ: Mapping[str, str]
    ) -> AgentRun:
        settings = self.settings(server, find, environ)
        overrides = [word for path, value in settings.items() for word in ("-c", f"{'.'.join(path)}={value}")]
        return AgentRun([*overrides, *arguments], {TOKEN_VARIABLE: server.token} if server.token else {})

    def _own_provider(self, find: Find) -> str:
        """Return the provider that the user has defined and chosen, "" for one that Codex knows."""
        chosen = _unquoted(find(("model_provider",)))
        return chosen if chosen and find(("model_providers", chosen, "base_url")) else ""

    def _key(self, find: Find, environ: Mapping[str, str]) -> dict[str, Any]:
        """Return where Codex takes the key from: the variable of the user's provider, or its own login."""
        own = self._own_provider(find)
        variable = _unquoted(find(("model_providers", own, "env_key"))) if own else ""
        if variable or environ.get("OPENAI_API_KEY"):
            return {"env_key": variable or "OPENAI_API_KEY"}
        login = self._login(environ)
        if login.get("OPENAI_API_KEY"):
            return {"requires_openai_auth": True}
        if login.get("tokens"):
            raise FovealError(
                "Codex is logged in with a ChatGPT plan, whose requests do not go to the public API: set "
                "OPENAI_API_KEY, or run codex login --with-api-key"
            )
        return {"env_key": "OPENAI_API_KEY"}

    def _login(self, environ: Mapping[str, str]) -> dict[str, Any]:
        try:
            found = json.loads(self.settings_file(environ).with_name("auth.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


# ── opencode ─────────────────────────────────────────────────────────────────────────────────────────────


class Opencode:
    """opencode. Its own providers for OpenAI and Anthropic get the address, so models and keys stay."""

    title = "opencode"
    program = "opencode"
    url_variables: tuple[str, ...] = ()
    project_files: tuple[str, ...] = ("opencode.json",)
    providers = ("openai", "anthropic")

    def settings_file(self, environ: Mapping[str, str]) -> Path:
        folder = _folder(environ, "XDG_CONFIG_HOME", ".config") / "opencode"
        names = ("opencode.jsonc", "opencode.json")
        return next((folder / name for name in names if os.path.lexists(folder / name)), folder / names[-1])

    def own_urls(self, find: Find) -> dict[str, str]:
        places: dict[SettingPath, str] = {
            ("provider", name, "options", "baseURL"): f"{name.upper()}_BASE_URL" for name in self.providers
        }
        return _found_urls(find, places)

    def settings(
        self, server: WrappedServer, find: Find, environ: Mapping[str, str]
    ) -> dict[SettingPath, str]:
        return {path: json.dumps(value) for path, value in self._values(server).items()}

    def started(
        self, server: WrappedServer, arguments: Sequence[str], find: Find, environ: Mapping[str, str]
    ) -> AgentRun:
        given = environ.get("OPENCODE_CONFIG_CONTENT", "")
        variables = {"OPENCODE_CONFIG_CONTENT": _with_json(given, self._values(server))}
        return AgentRun([*arguments], variables | ({TOKEN_VARIABLE: server.token} if server.token else {}))

    def _values(self, server: WrappedServer) -> dict[SettingPath, Any]:
        values: dict[SettingPath, Any] = {}
        for name in self.providers:
            values["provider", name, "options", "baseURL"] = f"{server.url}/v1"
            if server.token:
                header = ("provider", name, "options", "headers", TOKEN_HEADER)
                values[header] = f"{{env:{TOKEN_VARIABLE}}}"
        return {**values, ("compaction", "auto"): False, ("compaction", "prune"): False}


# ── aider ────────────────────────────────────────────────────────────────────────────────────────────────


class Aider:
    """aider, with models of OpenAI-compatible providers and of Anthropic. It sends no header of the user's, so a
    token takes the place of its key, and the server needs the key of the provider."""

    title = "aider"
    program = "aider"
    url_variables: tuple[str, ...] = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
    project_files: tuple[str, ...] = (".aider.conf.yml",)
    providers = ("openai", "anthropic")

    def settings_file(self, environ: Mapping[str, str]) -> Path:
        return Path(environ.get("HOME") or Path.home()) / ".aider.conf.yml"

    def own_urls(self, find: Find) -> dict[str, str]:
        return _found_urls(find, {("openai-api-base",): "OPENAI_BASE_URL"})

    def settings(
        self, server: WrappedServer, find: Find, environ: Mapping[str, str]
    ) -> dict[SettingPath, str]:
        if find(("set-env",)) is not None:
            raise FovealError(
                "set-env in .aider.conf.yml has values already, which would be lost: add the address yourself, or "
                "use `foveal wrap aider` without --save"
            )
        keys: dict[SettingPath, str] = {
            (f"{name}-api-key",): json.dumps(server.token) for name in self.providers if server.token
        }
        return keys | {
            ("openai-api-base",): f"{server.url}/v1",
            ("set-env",): json.dumps([f"{name}={url}" for name, url in self._variables(server).items()]),
            ("max-chat-history-tokens",): str(UNLIMITED_TOKENS),
        }

    def started(
        self, server: WrappedServer, arguments: Sequence[str], find: Find, environ: Mapping[str, str]
    ) -> AgentRun:
        own = ["--openai-api-base", f"{server.url}/v1", "--max-chat-history-tokens", str(UNLIMITED_TOKENS)]
        # aider's own variable comes before a key in its files, the other one serves its library.
        names = [f"{prefix}{name.upper()}_API_KEY" for prefix in ("", "AIDER_") for name in self.providers]
        keys = dict.fromkeys(names, server.token) if server.token else {}
        return AgentRun([*own, *arguments], self._variables(server) | keys)

    def _variables(self, server: WrappedServer) -> dict[str, str]:
        """Return the variables that come before openai-api-base for aider's library, or have no setting."""
        return {"OPENAI_BASE_URL": f"{server.url}/v1", "ANTHROPIC_API_BASE": server.url}


AGENTS: Final[dict[str, CodingAgent]] = {
    "claude": ClaudeCode(),
    "codex": Codex(),
    "opencode": Opencode(),
    "aider": Aider(),
}
"""By the name of the program."""
