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
    "re2": "finds secrets faster (foveal[redaction])",
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
DISTRIBUTIONS: Final = {
    "toktok": "toktok-rs", "re2": "google-re2", "telegram": "python-telegram-bot", "discord": "discord.py",
}  # fmt: skip
"""Names on the package index, where they differ from the imported name."""
API_KEYS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")


def add_commands(commands: Any) -> None:
    """Add both commands to the parser."""
    about = "print every setting, its value and its source"
    config = commands.add_parser("config", help=about, description=about, parents=[_common_options()])
    config.add_argument("--agent", metavar="NAME", help="the settings of the agent [agents.NAME]")
    about = (
        "print what the project of this folder brings, whether you allow it, and its hash for --trust-hash"
    )
    config.add_argument("what", nargs="?", choices=["project"], help=about)
    about = "with `project`: delete your answers, so that the next chat asks again"
    config.add_argument("--forget", action="store_true", help=about)
    about = "print what is installed and set up: model, window, tokenizer, store, packages"
    doctor = commands.add_parser("doctor", help=about, description=about, parents=[_common_options()])
    doctor.set_defaults(store=None)


def _common_options() -> ArgumentParser:
    part = ArgumentParser(add_help=False)
    part.add_argument("--json", action="store_true", help="as JSON")
    part.add_argument("--model", metavar="NAME", help="use this model instead of the configured one")
    about = "override a setting, such as context.policy=rolling; may be repeated"
    part.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)
    part.add_argument("--no-project", action="store_true", help="ignore foveal.toml of the project")
    return part


async def config(args: Namespace) -> int:
    """Print every setting with its value and source, or what the project brings."""
    if args.what == "project":
        return _print_project(args)
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


def _print_project(args: Namespace) -> int:
    """Print each item of the project with its whole text and your answer, and the hash of all."""
    from msgspec import to_builtins

    from foveal.config import setting_flags
    from foveal.config.load import project_items
    from foveal.config.project import ITEM_STATE_WORDS, Trust, items_hash

    config = _load(args)
    if args.forget:
        Trust().forget(config.root)
    answers = project_items(flags={"model": args.model, **setting_flags(args.set)})
    whole = items_hash(item for item, _ in answers)
    if args.json:
        items = [{**to_builtins(item), "digest": item.digest, "state": state} for item, state in answers]
        _print_json({"root": str(config.root), "hash": whole, "items": items, "notes": list(config.notes)})
        return 0
    for item, state in answers:
        print(f"{visible(item.source)}  {visible(item.title)}\n  {ITEM_STATE_WORDS[state]}")
        print("".join(f"    {line}\n" for line in visible(item.text).split("\n")))
    many = "item" if len(answers) == 1 else "items"
    print(f"{visible(str(config.root))} brings {len(answers):,} {many}; --trust-hash {whole}")
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

    from foveal.cli.version import version_text

    yield "foveal", version_text()
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield from _model_findings(config)
    yield "SQLite", _sqlite_version()
    yield "store", _store_state(store)
    yield "sandbox", _sandbox_state(config)
    yield "terminal", _terminal()
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
        words["server"] = "the default of its server; OLLAMA_CONTEXT_LENGTH or `window` sets more"
        words["asked"] = "its server was asked"
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
        from foveal.providers.ollama_window import ask_ollama_window

        found = selection.provider(name or None, environment=os.environ, window=window)
        ask_ollama_window(found)
        return found.model, ""
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
    into = download.weights_folder(os.environ)
    there = [
        name
        for name, weights in download.KNOWN_WEIGHTS.items()
        if download.cached_file(weights, into) is not None
    ]
    return f"{', '.join(there) or 'not downloaded yet: it is downloaded on first use'} ({into})"


def _sandbox_state(config: Config | None) -> str:
    from foveal.agent.permissions.sandbox import find_sandbox

    if config is not None and config.get("tools.sandbox") == "off":
        return f"switched off by {config.source('tools.sandbox')}: commands run without one"
    try:
        found = find_sandbox(Path.cwd())
    except OSError as problem:  # such as no usable temporary folder
        return f"not known: {problem.strerror or problem}"
    if found.sandbox is None:
        return f"none, so commands ask unless they only read: {found.why_not}"
    network = config is not None and config.get("tools.network")
    return f"{found.sandbox.name}, {'with' if network else 'without'} network"


def _terminal() -> str:
    if not sys.stdout.isatty():
        return "none: the output is not a terminal"
    size = os.get_terminal_size(sys.stdout.fileno())
    return f"{size.columns}×{size.lines}, TERM={os.environ.get('TERM', '')}, {sys.stdout.encoding}"


def _sqlite_version() -> str:
    import apsw

    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def _store_state(store: Path) -> str:
    from foveal.recall.archive.stored_sessions import is_writable

    try:
        size = f"{store.stat().st_size:,} bytes"
    except FileNotFoundError:
        size = "not there yet"
    except OSError as problem:
        return f"{store}, {problem.strerror}"
    advice = "" if is_writable(store) else "; it cannot be written: name another file with FOVEAL_STORE"
    return f"{store}, {size}{advice}"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return version(DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "installed" if find_spec(package) is not None else ""


# ── Loading and printing ─────────────────────────────────────────────────────────────────────────────────


def _load(args: Namespace) -> Config:
    from foveal.config import load, setting_flags

    return load(flags={"model": args.model, **setting_flags(args.set)}, project=not args.no_project)


def _files_text(config: Config | None) -> str:
    if config is None:
        return ""
    found = [f"{path} ({'read' if there else 'not there'})" for path, there in config.files]
    used = sum(state == "allowed" for _, state in config.project_items)
    items = f"{used:,} of {len(config.project_items):,} settings and servers allowed"
    return visible(f"{', '.join(found)}; project {config.root}{f': {items}' * bool(config.project_items)}")


def _files_json(config: Config) -> dict[str, Any]:
    return {
        "files": {str(path): there for path, there in config.files},
        "root": str(config.root),
        "project": {item.key: state for item, state in config.project_items},
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
