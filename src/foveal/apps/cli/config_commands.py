"""Commands `config` and `doctor`: settings with their sources, and the installation."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.core.wire.safe_print import one_line, visible
from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    from foveal.config import Config
    from foveal.core.models.model import Model

COMMANDS = ("config", "doctor")
PACKAGES: Final = {
    "toktok": "counts tokens exactly (foveal[exact])",
    "openai": "OpenAI and compatible providers",
    "anthropic": "Anthropic",
    "mcp": "tools of MCP servers",
    "prompt_toolkit": "terminal input",
    "rich": "terminal output",
    "dasllama": "runs the local model",
    "starlette": "the server (foveal[server])",
    "dbos": "background jobs of the server",
    "telegram": "a bot on Telegram (foveal[telegram])",
    "discord": "a bot on Discord (foveal[discord])",
}
"""Optional packages by the name under which they are imported, and what they are for."""
DISTRIBUTIONS: Final = {"toktok": "toktok-rs", "telegram": "python-telegram-bot", "discord": "discord.py"}
"""Names on the package index, where they differ from the imported name."""
API_KEYS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")


def add_commands(commands: Any, store: Path) -> None:
    """Add both commands to the parser; `store` is the path of the session store."""
    about = "print every setting, its value and its source"
    config = commands.add_parser("config", help=about, description=about, parents=[_common_options()])
    config.add_argument("--agent", metavar="NAME", help="the settings of the agent [agents.NAME]")
    about = "print what is installed and set up: model, window, tokenizer, store, packages"
    doctor = commands.add_parser("doctor", help=about, description=about, parents=[_common_options()])
    doctor.set_defaults(store=store)


def _common_options() -> ArgumentParser:
    part = ArgumentParser(add_help=False)
    part.add_argument("--json", action="store_true", help="as JSON")
    part.add_argument("--model", metavar="NAME", help="use this model instead of the configured one")
    about = "override a setting, such as context.policy=rolling; may be repeated"
    part.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)
    return part


async def config(args: Namespace) -> int:
    """Print every setting with its value and source."""
    loaded = _load(args)
    chosen = loaded if args.agent is None else loaded.agent(args.agent)
    entries = [entry for entry in chosen.entries() if args.agent is None or entry.name[:7] != "agents."]
    if args.json:
        values = {e.name: {"value": _json_value(e.value), "source": str(e.source)} for e in entries}
        _print_json({"values": values, **_files_json(loaded)})
        return 0
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{visible(entry.name):<{width}}  {_value_text(entry.value):<24}  {visible(str(entry.source))}")
    print(f"\n{_files_text(loaded)}")
    for note in loaded.notes:
        print(f"note: {visible(note)}")
    return 0


async def doctor(args: Namespace) -> int:
    """Print the state of the installation; a broken configuration is reported with the rest."""
    from foveal.config import strip_url_secrets

    loaded, problem = None, ""
    try:
        loaded = _load(args)
    except BadSetting as bad:
        problem = str(bad)
    findings = {name: strip_url_secrets(value) for name, value in _findings(loaded, args.store)}
    findings |= {"configuration": problem or _files_text(loaded)}
    if args.json:
        _print_json(findings)
    else:
        width = max(map(len, findings))
        for name, value in findings.items():
            print(f"{name:<{width}}  {visible(value)}")
        for note in loaded.notes if loaded is not None else ():
            print(f"note: {visible(note)}")
    return 1 if problem else 0


# ── Findings of the doctor ───────────────────────────────────────────────────────────────────────────────


def _findings(config: Config | None, store: Path) -> Iterator[tuple[str, str]]:
    import platform

    from foveal import __version__

    yield "foveal", __version__
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield from _model_findings(config)
    yield "SQLite", _sqlite_version()
    yield "store", _store_size(store)
    for package, use in PACKAGES.items():
        yield package, f"{_version(package) or 'not installed'}: {use}"
    yield "in the environment", ", ".join(_provider_variables()) or "no API key of a provider"
    yield "local model", _local_models()


def _model_findings(config: Config | None) -> Iterator[tuple[str, str]]:
    from foveal.core.tokens.counter import counter

    name = config.model if config is not None else ""
    window = config.get("window") if config is not None else None
    model, problem = _resolve_model(name, window)
    source = str(config.source("model")) if config is not None and name else "chosen from the environment"
    if model is None:
        yield "model", f"{name or 'none'}: {problem}"
    else:
        yield "model", f"{model.name} ({source}){problem}"
        setting = str(config.source("window")) if config is not None else ""
        words = {"yours": setting, "snapshot": "the table of models", "pattern": "its name"}
        yield "window", f"{model.window:,} tokens ({words.get(source := model.sources['window'], source)})"
    try:
        chosen = counter(config.get("tokenizer") if config is not None else "auto", model=name)
        yield "tokenizer", f"{chosen.name}, {'exact' if chosen.exact else 'an estimate'}"
    except FovealError as bad:
        yield "tokenizer", str(bad)


def _resolve_model(name: str, window: int | None) -> tuple[Model | None, str]:
    """Return the model that sessions would use, and why it cannot be called ("" if it can)."""
    from foveal.core.models.model import model

    try:
        from foveal.providers import selection

        return selection.provider(name or None, environment=os.environ, window=window).model, ""
    except (FovealError, ImportError) as problem:
        if not name:
            return None, str(problem)
        return model(name.partition("@")[0], window=window), f"; it cannot be called: {problem}"


def _provider_variables() -> list[str]:
    """Return the names of the environment variables that configure providers."""
    try:
        from foveal.providers.selection import SERVICES
    except ImportError:
        return [name for name in API_KEYS if os.environ.get(name)]
    known = [
        name
        for service in SERVICES.values()
        for name in (*service.key_variables, *service.optional_key_variables, *service.url_variables)
    ]
    return [name for name in dict.fromkeys(known) if os.environ.get(name)]


def _local_models() -> str:
    try:
        from foveal.providers.local import download
    except ImportError:
        return "not part of this version"
    into = download.cache_folder(os.environ)
    there = [
        name
        for name, weights in download.KNOWN_WEIGHTS.items()
        if download.cached_file(weights, into) is not None
    ]
    return f"{', '.join(there) or 'not downloaded yet: it is downloaded on first use'} ({into})"


def _sqlite_version() -> str:
    import apsw

    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def _store_size(store: Path) -> str:
    try:
        return f"{store}, {store.stat().st_size:,} bytes"
    except OSError as problem:
        return f"{store}, {'not there yet' if isinstance(problem, FileNotFoundError) else problem.strerror}"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return version(DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "installed" if find_spec(package) is not None else ""


# ── Loading and printing ─────────────────────────────────────────────────────────────────────────────────


def _load(args: Namespace) -> Config:
    from foveal.config import load

    flags: dict[str, str | None] = {"model": args.model}
    for setting in args.set:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadSetting("--set", setting, "KEY=VALUE, such as context.policy=rolling")
        flags[name.strip()] = value.strip()
    return load(flags=flags)


def _files_text(config: Config | None) -> str:
    if config is None:
        return ""
    found = [f"{path} ({'read' if there else 'not there'})" for path, there in config.files]
    trusted = {True: "trusted", False: "not trusted", None: "trust not decided yet"}
    return visible(f"{', '.join(found)}; project {config.root}: {trusted[config.trusted]}")


def _files_json(config: Config) -> dict[str, Any]:
    return {
        "files": {str(path): there for path, there in config.files},
        "root": str(config.root),
        "trusted": config.trusted,
        "notes": list(config.notes),
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _value_text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Mapping | tuple | bool):
        return one_line(json.dumps(_json_value(value), ensure_ascii=False), width=60)
    return one_line(f"{value:,}" if isinstance(value, int) else str(value), width=60) or '""'


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
