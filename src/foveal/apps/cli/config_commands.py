"""`foveal config` and `foveal doctor`: what is set, where it was set, and what there is to work with."""

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
    "openai": "OpenAI, and all who speak like it",
    "anthropic": "Anthropic",
    "mcp": "tools of MCP servers",
    "prompt_toolkit": "the terminal's input line",
    "rich": "the terminal's output",
    "dasllama": "runs the local model",
    "starlette": "the server (foveal[server])",
    "dbos": "its background work",
    "telegram": "a bot on Telegram (foveal[telegram])",
    "discord": "a bot on Discord (foveal[discord])",
}
DISTRIBUTIONS: Final = {"toktok": "toktok-rs", "telegram": "python-telegram-bot", "discord": "discord.py"}
"""Packages that are called otherwise where they come from."""
API_KEYS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")


def add_commands(commands: Any, store: Path) -> None:
    """Add both commands to the parser; `store` is where sessions are kept."""
    about = "every setting, its value, and where it was set"
    config = commands.add_parser("config", help=about, description=about, parents=[_given()])
    config.add_argument("--agent", metavar="NAME", help="as it is for the agent of [agents.NAME]")
    about = "what is set up: model, window, tokenizer, store, packages"
    doctor = commands.add_parser("doctor", help=about, description=about, parents=[_given()])
    doctor.set_defaults(store=store)


def _given() -> ArgumentParser:
    part = ArgumentParser(add_help=False)
    part.add_argument("--json", action="store_true", help="as JSON")
    part.add_argument("--model", metavar="NAME", help="as if this model were set")
    told = "as if this were set, such as context.policy=rolling; again for another one"
    part.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=told)
    return part


async def config(given: Namespace) -> int:
    loaded = _load(given)
    chosen = loaded if given.agent is None else loaded.agent(given.agent)
    entries = [entry for entry in chosen.entries() if given.agent is None or entry.name[:7] != "agents."]
    if given.json:
        values = {e.name: {"value": _plain(e.value), "source": str(e.source)} for e in entries}
        _print_json({"values": values, **_places(loaded)})
        return 0
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{visible(entry.name):<{width}}  {_shown(entry.value):<24}  {visible(str(entry.source))}")
    print(f"\n{_files(loaded)}")
    for note in loaded.notes:
        print(f"note: {visible(note)}")
    return 0


async def doctor(given: Namespace) -> int:
    from foveal.config import without_passwords

    found, problem = None, ""
    try:
        found = _load(given)
    except BadSetting as bad:
        problem = str(bad)
    told = {name: without_passwords(value) for name, value in _told(found, given.store)}
    told |= {"configuration": problem or _files(found)}
    if given.json:
        _print_json(told)
    else:
        width = max(map(len, told))
        for name, value in told.items():
            print(f"{name:<{width}}  {visible(value)}")
        for note in found.notes if found is not None else ():
            print(f"note: {visible(note)}")
    return 1 if problem else 0


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────


def _told(config: Config | None, store: Path) -> Iterator[tuple[str, str]]:
    import platform

    from foveal import __version__

    yield "foveal", __version__
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield from _model(config)
    yield "SQLite", _sqlite()
    yield "store", _size(store)
    for package, use in PACKAGES.items():
        yield package, f"{_version(package) or 'not installed'}: {use}"
    yield "in the environment", ", ".join(_variables()) or "no key of a provider"
    yield "local model", _local()


def _model(config: Config | None) -> Iterator[tuple[str, str]]:
    from foveal.core.tokens.counter import counter

    name = config.model if config is not None else ""
    window = config.get("window") if config is not None else None
    model, problem = _provided(name, window)
    source = str(config.source("model")) if config is not None and name else "by what the environment has"
    if model is None:
        yield "model", f"{name or 'none'}: {problem}"
    else:
        yield "model", f"{model.name} ({source}){problem}"
        said = str(config.source("window")) if config is not None else ""
        came = {"yours": said, "snapshot": "the table of models", "pattern": "its name"}
        yield "window", f"{model.window:,} tokens ({came.get(known := model.sources['window'], known)})"
    try:
        chosen = counter(config.get("tokenizer") if config is not None else "auto", model=name)
        yield "tokenizer", f"{chosen.name}, {'exact' if chosen.exact else 'an estimate'}"
    except FovealError as bad:
        yield "tokenizer", str(bad)


def _provided(name: str, window: int | None) -> tuple[Model | None, str]:
    """The model that would be asked, and what stands in the way of asking it."""
    from foveal.core.models import model as models

    try:
        from foveal.providers import selection

        return selection.provider(name or None, environment=os.environ, window=window).model, ""
    except (FovealError, ImportError) as problem:
        if not name:
            return None, str(problem)
        return models.model(name.partition("@")[0], window=window), f"; it cannot be asked: {problem}"


def _variables() -> list[str]:
    """Names of variables in the environment that say something about providers."""
    try:
        from foveal.providers.selection import SERVICES
    except ImportError:
        return [name for name in API_KEYS if os.environ.get(name)]
    known = [name for one in SERVICES.values() for name in (*one.keys, *one.optional_keys, *one.url_from)]
    return [name for name in dict.fromkeys(known) if os.environ.get(name)]


def _local() -> str:
    try:
        from foveal.providers.local import download
    except ImportError:
        return "not part of this version"
    into = download.folder(os.environ)
    there = [name for name, one in download.KNOWN.items() if download.cached(one, into) is not None]
    return f"{', '.join(there) or 'not fetched yet: it is when it is first used'} ({into})"


def _sqlite() -> str:
    import apsw

    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def _size(store: Path) -> str:
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


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────


def _load(given: Namespace) -> Config:
    from foveal.config import load

    flags: dict[str, str | None] = {"model": given.model}
    for setting in given.set:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadSetting("--set", setting, "KEY=VALUE, such as context.policy=rolling")
        flags[name.strip()] = value.strip()
    return load(flags=flags)


def _files(config: Config | None) -> str:
    if config is None:
        return ""
    found = [f"{path} ({'read' if there else 'not there'})" for path, there in config.files]
    trusted = {True: "trusted", False: "not trusted", None: "nobody has said whether it is trusted"}
    return visible(f"{', '.join(found)}; project {config.root}: {trusted[config.trusted]}")


def _places(config: Config) -> dict[str, Any]:
    return {
        "files": {str(path): there for path, there in config.files},
        "root": str(config.root),
        "trusted": config.trusted,
        "notes": list(config.notes),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Mapping | tuple | bool):
        return one_line(json.dumps(_plain(value), ensure_ascii=False), width=60)
    return one_line(f"{value:,}" if isinstance(value, int) else str(value), width=60) or '""'


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
