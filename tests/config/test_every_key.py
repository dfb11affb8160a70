"""Every key of the configuration is read by something, and changing it changes something."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

import foveal
from foveal.config import Config, load
from foveal.config.keys import ALIASES, KEYS, ConfigKey
from foveal.server.budgets import BudgetRules, Spender

SOURCE: Final = Path(foveal.__file__).parent
MODEL: Final = "gpt-4.1"
VALUES: Final[dict[str, str]] = {
    "context.tools.*.priority": '"low"',
    "context.policy": "'rolling'",
    "policies.*": "{preset = 'plain', cut_at = 9000}",
    "context.tool_result_truncation": "'tail'",
    "context.tools.*.tool_result_truncation": "'tail'",
    "context.tools.*.mask": "false",
    "compaction.mode": "'off'",
    "on_disconnect": "'pause'",
    "compaction.summarise": "'native'",
    "tokenizer": "'estimate'",
    "tools.approval": "'ask'",
    "tools.sandbox": "'off'",
    "telegram.webhook": "'delete'",
    "telegram.tools": "['fetch']",
    "telegram.approvers": "'admins'",
    "discord.tools": "['fetch']",
    "discord.approvers": "'admins'",
    "server.database": "'postgresql://localhost/foveal'",
    "telegram.agent": "'y'",
    "discord.agent": "'y'",
    "budgets.unknown_price": "'allow'",
    "schedule": "[{name = 'a', session = 's', cron = '0 9 * * *', prompt = 'Hello.'}]",
}
"""Values for keys that do not take any text or number."""


def value_of(key: ConfigKey) -> str:
    """Return a value that is not the default, in TOML."""
    name = ".".join(key.path)
    if name in VALUES:
        return VALUES[name]
    for value in (
        7,
        0.37,
        2_000,
        True,
        False,
        "file-or-name",
        "https://example.test/v1",
        ["x"],
        [5],
        {"A": "b"},
    ):
        if key.kind.is_valid(value) and value != key.default:
            return _toml(value)
    raise AssertionError(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)


def lines(key: ConfigKey, *, agent: str = "") -> str:
    path = [*(("agents", agent) if agent else ()), *("x" if name == "*" else name for name in key.path)]
    extra = (
        "mcp.x.command = 'server'\n"
        if key.path[:2] == ("mcp", "*") and key.path[2] in ("args", "env")
        else ""
    )
    return f"{extra}{'.'.join(path)} = {value_of(key)}\n"


def derived(config: Config) -> dict[str, Any]:
    """Return what programs get from a configuration by other ways than by the name of a key."""
    return {
        "session": config.session((config.get("model") and MODEL) or MODEL),
        "model": config.model,
        "summariser": config.summariser,
        "is_native": config.summarises_natively,
        "rules": config.rules,
        "memory": config.memory,
        "servers": config.servers,
        "schedules": config.schedules,
        "policies": config.named_policies,
        "bots": [config.bot_agent(app) for app in ("telegram", "discord")],
        "system": config.system_text(""),
        "budgets": [BudgetRules(config).of(Spender(name, "user", "session", "agent")) for name in "xy"],
    }


@cache
def names_read() -> tuple[re.Pattern[str], ...]:
    """Return the dotted names in the code outside of the configuration; `{…}` of an f-string is any name."""
    texts = [
        path.read_text("utf-8")
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "config"
    ]
    found = {
        name for text in texts for name in re.findall(r'"((?:\w|\{\w+\})+(?:\.(?:\w|\{\w+\})+)+)"', text)
    }
    found |= {name for text in texts for name in re.findall(r'get\("(\w+)"\)', text)}
    found = {name for name in found if re.sub(r"\{\w+\}", "", name.rpartition(".")[2])}
    return tuple(re.compile(re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(name))) for name in sorted(found))


def is_read_by_name(key: ConfigKey) -> bool:
    name = ".".join(key.path)
    return any(pattern.fullmatch(name) for pattern in names_read())


PATHS: Final = {key.path for key in KEYS}
OF_ALL: Final = [key for key in KEYS if key.path[0] != "agents"]
OF_AGENTS: Final = [key for key in OF_ALL if ("agents", "*", *key.path) in PATHS]


def dotted(key: ConfigKey) -> str:
    return ".".join(key.path)


def loaded(folder: Path, text: str) -> Config:
    (folder / "foveal.toml").write_text(text)
    return load(folder, environ={}, user_folder=folder, project=False)


def preset(key: ConfigKey, *, agent: str = "") -> str:
    """Return settings with which the key can act: a policy that uses all keys, and a model for its address."""
    if key.path == ("context", "policy"):
        return ""
    if key.path[-1] == "agent":
        return "agents.y.window = 8_000\n"
    if key.path == ("base_url",):
        return f"{f'agents.{agent}.' if agent else ''}model = 'openai/gpt-4.1'\n"
    return f"{f'agents.{agent}.' if agent else ''}context.policy = 'sliding-summary'\n"


@pytest.mark.parametrize("key", OF_ALL, ids=dotted)
def test_a_key_acts(key: ConfigKey, tmp_path: Path) -> None:
    before = loaded(tmp_path, preset(key))
    after = loaded(tmp_path, preset(key) + lines(key))
    assert derived(before) != derived(after) or is_read_by_name(key)


@pytest.mark.parametrize("key", OF_AGENTS, ids=dotted)
def test_a_key_of_an_agent_acts_as_that_of_all(key: ConfigKey, tmp_path: Path) -> None:
    of_all = loaded(tmp_path, preset(key) + lines(key))
    of_agent = loaded(tmp_path, preset(key, agent="y") + lines(key, agent="y")).agent("y")
    assert derived(of_agent) == derived(of_all)
    if "*" not in key.path:
        assert of_agent.get(dotted(key)) == of_all.get(dotted(key)) != key.default


def test_a_number_of_turns_is_refused_in_a_mode_that_never_summarises(tmp_path: Path) -> None:
    given = "[compaction]\ninvocation_threshold = 5\noverlap_size = 2\n"
    wanted = (
        r":2: compaction.invocation_threshold = 5 is not allowed: 0 in mode 'off'.* mode 'auto' or 'confirm'"
    )
    with pytest.raises(foveal.BadSetting, match=wanted):
        loaded(tmp_path, f"{given}mode = 'off'\n")
    for mode in ("auto", "confirm"):
        assert loaded(tmp_path, f"{given}mode = '{mode}'\n").policy().every_turns == 5
    with pytest.raises(foveal.BadSetting, match="invocation_threshold = 5 is not allowed"):
        loaded(tmp_path, f"{given}[agents.x.compaction]\nmode = 'off'\n")
    none = f"{given}[agents.x.compaction]\nmode = 'off'\ninvocation_threshold = 0\n"
    assert loaded(tmp_path, none).agent("x").policy().every_turns == 0
    assert loaded(tmp_path, "context.policy = 'sliding-summary'\ncompaction.mode = 'off'\n").policy()


def test_an_alias_is_no_key_of_its_own() -> None:
    assert not {alias.path for alias in ALIASES} & {key.path for key in KEYS}
