"""No output shows the secret values of settings."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.cli import main
from foveal.config import BadConfig, ConfigChange, load, strip_url_secrets
from foveal.config.keys import KEYS, ConfigKey

MARK: Final = "hunter2"
NEWER: Final = "hunter3"
SECRET_NAME: Final = re.compile(r"(^|_)(secret|token|key|password|env|args|hook)s?$")
"""Names whose values are secrets in full. `max_tokens` and the like are numbers."""
TEXTS: Final = [
    key for key in KEYS if any(key.kind.is_valid(value) for value in ("x", ["x"], {"A": "x"}, "https://x"))
]
"""Keys whose values can have any text in them."""


def dotted(key: ConfigKey) -> str:
    return ".".join(key.path)


def values_with(key: ConfigKey, mark: str) -> list[Any]:
    """Return values of a key that have a secret: in full if its name says so, else as the password of a URL."""
    urls = [f"{scheme}://me:{mark}@host.test/a?key={mark}" for scheme in ("https", "postgresql")]
    whole: list[Any] = [mark, f"a-{mark}"] if SECRET_NAME.search(key.path[-1]) else []
    texts = [*whole, *urls]
    offered: list[Any] = [*texts, texts, {"A": texts[0]}]
    return [value for value in offered if key.kind.is_valid(value)]


def setting(key: ConfigKey, value: Any) -> str:
    extra = 'mcp.x.command = "server"\n' if key.path[-1] in ("args", "env") else ""
    if key.path[-1] == "base_url" and key.path[0] not in ("telegram", "discord"):
        above = ".".join(("x" if name == "*" else name) for name in key.path[:-1])
        extra = f'{above}{"." if above else ""}model = "openai/gpt-4.1"\n'
    table = isinstance(value, dict)
    shown = (
        "{" + ", ".join(f"{n} = {json.dumps(v)}" for n, v in value.items()) + "}"
        if table
        else json.dumps(value)
    )
    text = f"{extra}{'.'.join('x' if name == '*' else name for name in key.path)} = {shown}\n"
    assert tomllib.loads(text)
    return text


# A policy and an agent are names that must exist.
SECRETS: Final = [
    pytest.param(key, id=dotted(key))
    for key in KEYS
    if values_with(key, MARK) and key.path[-1] not in ("policy", "agent")
]


@pytest.mark.parametrize("key", SECRETS)
def test_no_output_shows_a_secret(
    key: ConfigKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(text: str) -> Any:
        (tmp_path / "foveal.toml").write_text(text)
        return load(tmp_path, environ={}, user_folder=tmp_path, project=False)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shown: list[object] = []
    for value, newer in zip(values_with(key, MARK), values_with(key, NEWER), strict=True):
        config, other = loaded(setting(key, value)), loaded(setting(key, newer))
        changes: list[ConfigChange] = config.changes(other)
        assert changes
        shown += [*config.entries(), *changes]
    assert shown
    assert not re.search(f"{MARK}|{NEWER}", str(shown))
    if key.variable:
        for text in (value for value in values_with(key, MARK) if isinstance(value, str)):
            (tmp_path / "foveal.toml").write_text("")
            monkeypatch.setenv(key.variable, text)
            for command in ([], ["--json"]):
                main(["config", *command])
                assert MARK not in capsys.readouterr().out


@pytest.mark.parametrize("key", SECRETS)
def test_no_error_quotes_a_secret(key: ConfigKey, tmp_path: Path) -> None:
    for wrong in (f"ftp://me:{MARK}@host.test?key={MARK}", {"A": 1}, 7, [[1]]):
        if isinstance(wrong, str) and key.kind.is_valid(wrong):
            continue
        (tmp_path / "foveal.toml").write_text(setting(key, wrong))
        problem: BadConfig | None = None
        try:
            load(tmp_path, environ={}, user_folder=tmp_path, project=False)
        except BadConfig as raised:
            problem = raised
        told = f"{problem} {problem!r} {problem and vars(problem)}"
        assert MARK not in told


def test_a_key_with_the_name_of_a_secret_is_declared_as_one() -> None:
    named = [key for key in TEXTS if SECRET_NAME.search(key.path[-1])]
    assert {"server.webhook_secret", "mcp.*.env", "mcp.*.args", "context.hook"} <= set(map(dotted, named))
    assert [dotted(key) for key in named if not key.secret] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@h/db?sslpassword=x", "postgresql://h/db"),
        ("a model@http://me:pw@host:80/v1 end", "a model@http://host:80/v1 end"),
        ("postgresql://u:p/w@h/db", "postgresql://h/db"),
        ("postgresql://u:p?w@h/db", "postgresql://…"),
        ("http://h/?token=a@b", "http://…"),
        ("https://h/@scope/x", "https://h/@scope/x"),
        ("redis://:pw@h", "redis://h"),
        ("file:///home/me/x", "file:///home/me/x"),
    ],
)
def test_urls_are_shown_without_passwords(text: str, shown: str) -> None:
    assert strip_url_secrets(text) == shown
