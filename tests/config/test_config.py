"""The configuration: sources, errors, line numbers, derived settings, commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import Limits
from foveal.cli.version import version_text
from foveal.config import (
    BadConfig,
    Config,
    McpServerSettings,
    dotted_name,
    find_key,
    key_lines,
    line_of,
    load,
)
from foveal.config.instructions import ROOT_MARKERS, InstructionRules
from foveal.config.keys import KEYS
from foveal.config.project import EveryItem
from foveal.core.engine import resolve_settings
from foveal.core.policies import PRESETS, policy
from foveal.errors import BadSetting
from support import warm_start
from support.effort import bounded
from support.paths import ROOT


class ConfigFolders:
    """A user folder and a project on disk."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "home"
        self.root = folder / "project"
        self.user.mkdir()
        (self.root / ".git").mkdir(parents=True)
        self.trust = EveryItem()

    def load(
        self, *, user: str = "", project: str = "", environ: Mapping[str, str] | None = None, **flags: Any
    ) -> Config:
        for text, where in ((user, self.user), (project, self.root)):
            (where / "foveal.toml").write_text(text)
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load(self.root, flags=named, environ=environ or {}, user_folder=self.user, trust=self.trust)


@pytest.fixture
def folders(tmp_path: Path) -> ConfigFolders:
    return ConfigFolders(tmp_path.resolve())


# ── Sources of values ───────────────────────────────────────────────────────────────────────────────


def test_without_settings_every_value_is_its_default(folders: ConfigFolders) -> None:
    config = load(folders.root, environ={}, user_folder=folders.user, trust=folders.trust)
    assert dict(config.values) == {}
    assert config.files == ((folders.user / "foveal.toml", False), (folders.root / "foveal.toml", False))
    assert {str(entry.source) for entry in config.entries()} == {"default", "policy economy"}
    assert config.policy() == PRESETS["economy"]
    assert config.rules == InstructionRules()
    assert (config.model, config.summariser, config.servers, config.agents) == ("", "", (), ())


def test_the_order_is_user_project_environment_flags(folders: ConfigFolders) -> None:
    user, project = "max_input_tokens = 1_000\nreserve = 1", "\nmax_input_tokens = 2_000"
    variable = {"FOVEAL_MAX_INPUT_TOKENS": "3000"}

    def shown(config: Config) -> tuple[int, str]:
        return config.get("max_input_tokens"), str(config.source("max_input_tokens"))

    assert shown(folders.load(user=user)) == (1_000, f"{folders.user}/foveal.toml:1")
    both = folders.load(user=user, project=project)
    assert shown(both) == (2_000, f"{folders.root}/foveal.toml:2")
    assert both.get("reserve") == 1
    assert shown(folders.load(user=user, project=project, environ=variable)) == (
        3_000,
        "FOVEAL_MAX_INPUT_TOKENS",
    )
    config = folders.load(user=user, project=project, environ=variable, max_input_tokens=4_000)
    assert shown(config) == (4_000, "flag max_input_tokens")
    assert shown(folders.load(user=user, max_input_tokens=None)) == (1_000, f"{folders.user}/foveal.toml:1")


def test_the_project_file_is_the_one_in_the_root(folders: ConfigFolders) -> None:
    (folders.root / "a" / "b").mkdir(parents=True)
    (folders.root / "foveal.toml").write_text("reserve = 7")
    (folders.root / "a" / "foveal.toml").write_text("reserve = 8")
    config = load(folders.root / "a" / "b", environ={}, user_folder=folders.user, trust=folders.trust)
    assert (config.get("reserve"), config.root) == (7, folders.root)


def test_root_markers_select_the_project_file_and_are_the_user_s(folders: ConfigFolders) -> None:
    (folders.root / "sub").mkdir()
    (folders.root / "sub" / "foveal.toml").write_text("reserve = 8")
    (folders.user / "foveal.toml").write_text("[instructions]\nroot_markers = []")
    config = load(folders.root / "sub", environ={}, user_folder=folders.user, trust=folders.trust)
    assert config.get("reserve") == 8
    assert config.rules.root_markers == ()
    config = folders.load(user="", project='[instructions]\nroot_markers = [".hg"]')
    assert config.rules.root_markers == ROOT_MARKERS
    assert config.notes == (
        f"{folders.root}/foveal.toml:2: instructions.root_markers is ignored: a project cannot set it, only your "
        "own file, the environment or a flag",
    )


def test_variables_and_flags_are_parsed_by_the_kind_of_the_key(folders: ConfigFolders) -> None:
    environ = {
        "FOVEAL_MODEL": "openai/gpt-4.1",
        "FOVEAL_MARGIN": "0.2",
        "FOVEAL_WINDOW": "128_000",
        "FOVEAL_TOOLS_ALLOW": "read, list",
        "FOVEAL_CONTEXT_POLICY": "rolling",
        "FOVEAL_RESERVE": "",
    }
    config = folders.load(environ=environ, context__tools__bash__mask="false")
    assert config.model == "openai/gpt-4.1"
    assert (config.get("margin"), config.get("window"), config.get("reserve")) == (0.2, 128_000, None)
    assert config.get("tools.allow") == ("read", "list")
    assert config.policy() == policy("rolling", exempt_tools=("bash",))
    assert str(config.source("context.tools.bash.mask")) == "flag context.tools.bash.mask"


def test_an_unknown_variable_is_a_note_and_not_an_error(folders: ConfigFolders) -> None:
    config = folders.load(environ={"FOVEAL_POLICY": "x", "FOVEAL_STORE": "y", "HOME": "z"})
    assert config.notes == ("FOVEAL_POLICY is set but is not a known setting",)


def test_the_user_folder_as_project_has_one_file_and_not_two(folders: ConfigFolders) -> None:
    (folders.user / "foveal.toml").write_text('model = "gpt-4.1"')
    config = load(folders.user, environ={}, user_folder=folders.user, trust=folders.trust)
    assert config.source("model").kind == "user"
    assert config.notes == ()


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\nmodle = 'x'", ":2: there is no key modle; allowed are model, base_url, "),
        ("[context]\n\npolcy = 'x'", ":3: there is no key context.polcy; allowed in [context] are policy, "),
        ("[contxt]\npolicy = 'x'", ":1: there is no key contxt; allowed are model, "),
        ("context = 3", ":1: context = int is not allowed: a table with policy, "),
        ("[context]\npolicy = 'x'", ":2: context.policy = 'x' is not allowed: one of economy, handoff, "),
        ("context.policy = 3", ":1: context.policy = 3 is not allowed: one of economy, "),
        ("context = { policy = 'x' }", ":1: context.policy = 'x' is not allowed"),
        ("max_input_tokens = 0", ":1: max_input_tokens = 0 is not allowed: a whole number from 1 to "),
        ("max_input_tokens = 1.5", ":1: max_input_tokens = 1.5 is not allowed: a whole number"),
        ("max_input_tokens = true", ":1: max_input_tokens = true is not allowed: a whole number"),
        ("margin = nan", ":1: margin = nan is not allowed: a number from 0 to 0.9"),
        (
            "[compaction]\ninvocation_threshold = -1\noverlap_size = 0",
            ":2: compaction.invocation_threshold = -1 is",
        ),
        (
            "[compaction]\nmode = 'ask'",
            ":2: compaction.mode = 'ask' is not allowed: one of auto, confirm, off",
        ),
        (
            "[context.tools.bash]\nlimit = 3",
            ":2: there is no key context.tools.bash.limit; allowed in [context",
        ),
        ("[context.tools.'a.b']\nmask = 3", ':2: context.tools."a.b".mask = 3 is not allowed: true or false'),
        (
            "[agents.x.context]\npolicy = 'y'",
            ":2: agents.x.context.policy = 'y' is not allowed: one of economy",
        ),
        (
            "[agents.x.mcp.y]\ncommand = 'z'",
            ":1: there is no key agents.x.mcp; allowed in [agents.x] are model,",
        ),
        ("[mcp.x]\nargs = []", ":2: [mcp.x] needs either command or url"),
        ("[mcp.x]\nurl = 'http://x'\ncommand = 'y'", ":2: [mcp.x] needs either command or url"),
        ("[mcp.x]\nurl = 'ftp://x'", ":2: mcp.x.url = 'ftp://x' is not allowed: a URL that begins with"),
        ("[tools]\nallow = 'all'", ":2: tools.allow = 'all' is not allowed: a list of strings"),
        (
            "[instructions]\nfallback_names = ['../x']",
            ":2: instructions.fallback_names = ['../x'] is not allowed",
        ),
        ("a = 1\nb = = 2", ":2: invalid TOML: "),
        ("reserve = 1\nreserve = 2", ":2: invalid TOML: Cannot overwrite a value"),
        ("[[agents]]\nmodel = 'x'", ":1: agents = list is not allowed: a table with a name of your own"),
    ],
)
def test_an_error_names_the_file_the_line_and_what_is_allowed(
    folders: ConfigFolders, text: str, shown: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        folders.load(user=text)
    assert str(caught.value).startswith(f"{folders.user}/foveal.toml{shown}")


def test_an_error_in_a_variable_or_a_flag_names_it(folders: ConfigFolders) -> None:
    with pytest.raises(BadConfig, match=r"^FOVEAL_WINDOW: window = 'many' is not allowed: a whole number"):
        folders.load(environ={"FOVEAL_WINDOW": "many"})
    with pytest.raises(BadConfig, match=r"^flag window: window = 0 is not allowed: a whole number"):
        folders.load(window=0)
    with pytest.raises(BadConfig, match=r"^flag context.x: there is no key context.x; allowed"):
        folders.load(context__x="1")


def test_an_error_contains_no_secret(folders: ConfigFolders) -> None:
    for text in (
        "api_key = 'sk-123'",
        "[mcp.x]\ncommand = 'y'\nenv = 'sk-123'",
        "[mcp.x]\ncommand = 'y'\nenv = { TOKEN = 3, KEY = 'sk-123' }",
        "[mcp.x]\ncommand = 'y'\nargs = ['sk-123', 3]",
        "mcp = 'sk-123'",
    ):
        with pytest.raises(BadConfig) as caught:
            folders.load(user=text)
        assert "sk-123" not in f"{caught.value} {caught.value!r} {caught.value.args}"
    with pytest.raises(BadConfig, match="keys of providers belong in the environment"):
        folders.load(user="api_key = 'sk-123'")


@pytest.mark.parametrize("chosen", ["rolling", "recent", "off"])
def test_turns_are_refused_under_a_policy_that_does_not_summarise(
    folders: ConfigFolders, chosen: str
) -> None:
    given = f"[context]\npolicy = '{chosen}'\n[compaction]\ninvocation_threshold = 5\noverlap_size = 1"
    told = rf":4: compaction.invocation_threshold = 5 .* {chosen}, .* choose another policy: sliding-summary"
    with pytest.raises(BadConfig, match=told):
        folders.load(user=given)


@pytest.mark.parametrize(("value", "mode"), [("true", "auto"), ("false", "off")])
def test_enabled_is_another_spelling_of_mode(folders: ConfigFolders, value: str, mode: str) -> None:
    of_file = folders.load(user=f"[compaction]\nenabled = {value}\n[agents.x.compaction]\nenabled = true")
    assert of_file.get("compaction.mode") == mode
    assert str(of_file.source("compaction.mode")).endswith(":2")
    assert of_file.policy().mode == mode
    assert of_file.agent("x").get("compaction.mode") == "auto"
    of_variable = folders.load(
        user="[compaction]\nmode = 'confirm'", environ={"FOVEAL_COMPACTION_ENABLED": value}
    )
    assert of_variable.get("compaction.mode") == mode
    assert of_variable.notes == ()
    assert folders.load(compaction__enabled=value).get("compaction.mode") == mode


def test_a_wrong_value_of_enabled_and_both_spellings_are_an_error(folders: ConfigFolders) -> None:
    with pytest.raises(BadConfig, match=r":2: compaction.enabled = 'yes' is not allowed: true or false"):
        folders.load(user="[compaction]\nenabled = 'yes'")
    with pytest.raises(BadConfig, match=r":3: compaction.mode is set twice: also by .*:2"):
        folders.load(user="[compaction]\nmode = 'auto'\nenabled = false")


def test_conflicting_values_are_an_error_with_their_line(folders: ConfigFolders) -> None:
    with pytest.raises(
        BadConfig, match=r":3: compaction.overlap_size = 2 is not allowed: without compaction.inv"
    ):
        folders.load(user="\n[compaction]\noverlap_size = 2")
    with pytest.raises(BadConfig, match=r":2: compaction.invocation_threshold = 5 .* give both, or neither"):
        folders.load(user="[agents.x.compaction]\ninvocation_threshold = 5")
    sliding = "[context]\npolicy = 'sliding-summary'\n[compaction]\ninvocation_threshold = 9"
    assert folders.load(user=sliding).policy() == policy("sliding-summary", every_turns=9)
    assert folders.load(user="[compaction]\ntoken_threshold = 9_000").policy().act_tokens == 9_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "window = 8_000\nreserve = 9_000",
            ":2: reserve = 9000 is not allowed: fewer tokens than the window of the model, which has 8,000: a "
            "reserve of 9,000 for the answer leaves none for messages; lower `reserve`, or set a larger `window`",
        ),
        (
            "reserve = 200_000\nmodel = 'openai/gpt-4o'",
            ":1: reserve = 200000 is not allowed: fewer tokens than",
        ),
        (
            "window = 8_000\nmax_output_tokens = 8_000",
            ":2: max_output_tokens = 8000 is not allowed: fewer tokens",
        ),
        (
            "window = 8_000\nmax_output_tokens = 9_000",
            ":2: max_output_tokens = 9000 is not allowed: at most the wi",
        ),
        (
            "window = 8_000\nreserve = 4_000\nmargin = 0.5",
            ":3: margin = 0.5 is not allowed: a share that leaves room for messages: window 8,000 − reserve 4,000 "
            "− margin 4,000 leaves none; lower `margin` or `reserve`, or set a larger `window`",
        ),
        (
            "window = 8_000\n[agents.x]\nreserve = 9_000",
            ":3: reserve = 9000 is not allowed: fewer tokens than the ",
        ),
    ],
)
def test_a_reserve_that_leaves_no_room_is_an_error(folders: ConfigFolders, text: str, shown: str) -> None:
    with pytest.raises(BadConfig) as caught:
        folders.load(user=text)
    assert str(caught.value).startswith(f"{folders.user}/foveal.toml{shown}")


def test_a_reserve_is_checked_only_where_the_window_is_known(folders: ConfigFolders) -> None:
    assert folders.load(user="reserve = 200_000").get("reserve") == 200_000
    assert folders.load(user="reserve = 200_000\nmodel = 'ollama/my-own'").get("reserve") == 200_000
    assert folders.load(user="reserve = 200_000\nmodel = 'openai/gpt-4.1'").get("reserve") == 200_000
    with pytest.raises(
        BadConfig, match=r"^flag reserve: reserve = 9000 is not allowed: fewer tokens than the win"
    ):
        folders.load(user="window = 8_000", reserve=9_000)


def test_an_unusable_file_is_an_error_and_nothing_blocks(folders: ConfigFolders) -> None:
    path = folders.root / "foveal.toml"
    os.mkfifo(path)
    with pytest.raises(BadConfig, match=r"foveal\.toml: this file cannot be used: it is a pipe"):
        load(folders.root, environ={}, user_folder=folders.user, trust=folders.trust)
    path.unlink()
    (folders.root.parent / "secret").write_text("x = 1")
    path.symlink_to("../secret")
    with pytest.raises(BadConfig, match="a link that leads out of the project"):
        load(folders.root, environ={}, user_folder=folders.user, trust=folders.trust)
    path.unlink()
    path.write_bytes(b"model = '\xff'")
    with pytest.raises(BadConfig, match="a configuration file is UTF-8 of at most 262,144 bytes"):
        load(folders.root, environ={}, user_folder=folders.user, trust=folders.trust)
    path.write_text("#" * 300_000)
    with pytest.raises(BadConfig, match="a configuration file is UTF-8 of at most 262,144 bytes"):
        load(folders.root, environ={}, user_folder=folders.user, trust=folders.trust)


# ── Line numbers ────────────────────────────────────────────────────────────────────────────────────────────────

TOML = '''# a comment
model = "x"   # [context]
"quoted key" = 1
args = [
    "a", # ]
    "[context]",
]
prompt = """
[context]
policy = "in a text"
"""
one.two.three = 1

[context]
policy = "y"
tools.bash = { mask = false }

[context.tools."my.tool"]
mask = true
[[list]]
a = 1
[[list]]
a = 2
'''


def test_the_line_of_a_key_is_found() -> None:
    found = key_lines(TOML)
    assert found == {
        ("model",): 2,
        ("quoted key",): 3,
        ("args",): 4,
        ("prompt",): 8,
        ("one",): 12,
        ("one", "two"): 12,
        ("one", "two", "three"): 12,
        ("context",): 14,
        ("context", "policy"): 15,
        ("context", "tools"): 16,
        ("context", "tools", "bash"): 16,
        ("context", "tools", "bash", "mask"): 16,
        ("context", "tools", "my.tool"): 18,
        ("context", "tools", "my.tool", "mask"): 19,
        ("list",): 20,
        ("list", "a"): 21,
    }
    assert line_of(found, ("context", "no", "such")) == 14
    assert line_of(found, ("no",)) == 0


NAMES = st.text(alphabet="ab-_1", min_size=1, max_size=4)
VALUES = st.sampled_from(
    ['"[x]"', "3", "'''\n[a]\nb = 1\n'''", "[\n1,\n2 # ]\n]", '"""\\"" ]"""', "{ a = 1 }"]
)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_every_key_of_a_generated_file_has_its_line(tables: dict[str, dict[str, str]]) -> None:
    rows: list[str] = []
    where: dict[tuple[str, ...], int] = {}
    for table, keys in tables.items():
        where[(table,)] = len(rows) + 1
        rows += [f"[{table}]", ""]
        for key, value in keys.items():
            where[table, key] = len(rows) + 1
            rows += f"{key} = {value}".split("\n")
    text = "\n".join(rows)
    tomllib.loads(text)
    found = key_lines(text)
    assert {path: found[path] for path in where} == where


def test_a_hostile_file_is_rejected_quickly() -> None:
    with bounded():
        assert key_lines('x = """\n' + "]\n" * 100_000 + '"""\ny = 1\n') == {}


# ── Derived settings ───────────────────────────────────────────────────────────────────────────────────────

FULL = """
model = "openai/gpt-4.1"
window = 100_000
max_input_tokens = 80_000
max_output_tokens = 4_000
tokenizer = "estimate"

[context]
policy = "handoff"
max_history_tokens = 30_000
max_tool_result_tokens = 5_000
tool_result_truncation = "both"
tool_result_keep_first = 1
tool_result_keep_last = 9

[context.tools.bash]
max_tool_result_tokens = 2_000
tool_result_truncation = "tail"
[context.tools.read_plan]
mask = false
[context.tools.grep]
max_tool_result_tokens = 0

[compaction]
mode = "auto"
threshold = 0.6
token_threshold = 70_000
safety_ratio = 0.65
invocation_threshold = 4
overlap_size = 1
prompt_template = "file://prompts/mine.md"
model = "openai/gpt-4.1-mini"

[instructions]
max_bytes = 1_000
preferences_max_bytes = 0
fallback_names = ["CLAUDE.md"]
ignore = ["vendor"]

[tools]
allow = ["read"]

[mcp.files]
command = "npx"
args = ["server"]
env = { TOKEN = "sk-123" }
[mcp.web]
url = "https://me:hunter2@example.org/mcp?key=sk-123"

[agents.reviewer]
model = "anthropic/claude-sonnet-4-6"
[agents.reviewer.context]
policy = "recent-summary"
[agents.reviewer.compaction]
invocation_threshold = 2
"""


def test_keys_set_the_fields_of_the_policy(folders: ConfigFolders) -> None:
    config = folders.load(user=FULL)
    assert config.policy(window=100_000) == policy(
        "handoff",
        max_history_tokens=30_000,
        keep_first=1,
        keep_last=9,
        clip=Limits(strategy="both", tokens=5_000),
        clip_tools={
            "bash": Limits(strategy="tail", tokens=2_000),
            "grep": Limits(strategy="both", tokens=None),
        },
        exempt_tools=("read_plan",),
        mode="auto",
        act=0.6,
        warn=0.6,
        target=0.6,
        act_tokens=65_000,
        every_turns=4,
        overlap_turns=1,
    )
    assert config.summariser == "openai/gpt-4.1-mini"
    assert config.rules == InstructionRules(
        max_bytes=1_000, preferences_max_bytes=0, fallback_names=("CLAUDE.md",), ignore=("vendor",)
    )


def test_session_returns_keyword_arguments_of_a_session(folders: ConfigFolders) -> None:
    (folders.user / "prompts").mkdir()
    (folders.user / "prompts" / "mine.md").write_text("Summarise.")
    config = folders.load(user=FULL)
    arguments = config.session(config.model)
    assert arguments.pop("prompt") == f"file://{folders.user}/prompts/mine.md"
    made = resolve_settings(config.model, **arguments)
    assert (made.model.window, made.caps.max_input_tokens, made.caps.reserve) == (100_000, 80_000, 4_000)
    assert (made.counter.name, made.policy) == ("estimate", config.policy(window=100_000))
    assert folders.load().session("gpt-4.1") == {
        "policy": PRESETS["economy"],
        "prompt": "",
        "tokenizer": "auto",
    }


def test_the_safety_ratio_needs_the_window(folders: ConfigFolders) -> None:
    config = folders.load(user="[compaction]\nsafety_ratio = 0.5")
    assert config.session(foveal.model("gpt-4.1", window=60_000))["policy"].act_tokens == 30_000
    assert config.session("gpt-4.1")["policy"].act_tokens == foveal.model("gpt-4.1").window // 2


def test_a_history_cap_of_0_removes_that_of_the_policy(folders: ConfigFolders) -> None:
    config = folders.load(
        user="[context]\npolicy = 'rolling'\nmax_history_tokens = 0\nmax_tool_result_tokens = 0"
    )
    assert (config.policy().max_history_tokens, config.policy().clip) == (0, Limits(strategy="head"))


def test_values_of_a_named_agent_override_the_files(folders: ConfigFolders) -> None:
    config = folders.load(user=FULL)
    reviewer = config.agent("reviewer")
    assert config.agents == ("reviewer",)
    assert reviewer.model == "anthropic/claude-sonnet-4-6"
    assert (reviewer.policy().name, reviewer.policy().every_turns) == ("recent-summary", 2)
    assert reviewer.get("max_input_tokens") == 80_000
    assert folders.load(user=FULL, model="gpt-5").agent("reviewer").model == "gpt-5"
    with pytest.raises(BadSetting, match="agent = 'other' is not allowed: one of reviewer"):
        config.agent("other")


def test_an_mcp_server_has_a_command_or_a_url(folders: ConfigFolders) -> None:
    assert folders.load(user=FULL).servers == (
        McpServerSettings("files", command="npx", args=("server",), env={"TOKEN": "sk-123"}),
        McpServerSettings("web", url="https://me:hunter2@example.org/mcp?key=sk-123"),
    )


def test_a_base_url_is_added_to_the_name_of_the_model(folders: ConfigFolders) -> None:
    config = folders.load(user="model = 'vllm/x'\nbase_url = 'http://10.0.0.7:8000/v1'")
    assert config.model == "vllm/x@http://10.0.0.7:8000/v1"


def test_a_base_url_does_not_apply_to_the_local_model(folders: ConfigFolders) -> None:
    config = folders.load(user="base_url = 'http://10.0.0.7:8000/v1'", model="local/x")
    assert config.model == "local/x"


def test_a_configuration_is_immutable(folders: ConfigFolders) -> None:
    config = folders.load(user=FULL)
    with pytest.raises(TypeError):
        config.values["model",] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        config.servers[0].env["TOKEN"] = ""  # type: ignore[index]
    assert isinstance(config.get("tools.allow"), tuple)


def test_entries_have_sources_and_no_secrets(folders: ConfigFolders) -> None:
    entries = {entry.name: entry for entry in folders.load(user=FULL).entries()}
    assert {dotted_name(key.path) for key in KEYS if "*" not in key.path} <= entries.keys()
    assert (
        str(entries["context.tools.bash.tool_result_truncation"].source) == f"{folders.user}/foveal.toml:18"
    )
    assert entries["mcp.files.env"].value == {"TOKEN": "…"}
    assert entries["mcp.web.url"].value == "https://example.org/mcp"
    assert "sk-123" not in str(entries)
    assert "hunter2" not in str(entries)


def test_every_key_has_a_description_and_a_valid_default() -> None:
    assert len({key.path for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert key.description
        assert find_key(key.path) is key
        assert key.default is None or key.kind.is_valid(key.default) or key.default == ""
    assert find_key(("instructions", "root_markers")).default == list(ROOT_MARKERS)  # type: ignore[union-attr]


GOOD_SCHEDULE = {"name": "a", "session": "s", "cron": "* * * * *", "prompt": "p"}
PAGE = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")


def test_the_docs_list_every_key_with_default_and_who_may_set_it() -> None:
    rows = [row.strip("| ").split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]
    shown = {row[0].strip("`"): [row[1], row[2], row[4]] for row in rows}
    known = {}
    for key in KEYS:
        if key.path[0] != "agents":
            default = "–" if key.default is None else str(key.default).replace("'", '"') or '""'
            who = "asks" if key.project else "no"
            known[".".join(key.path).replace("*", "NAME")] = [default, key.kind.allowed, who]
    assert shown == known


def test_the_example_in_the_docs_is_valid(folders: ConfigFolders) -> None:
    example = PAGE.split("```toml\n")[1].split("```")[0]
    assert folders.load(user=example).agents == ("reviewer",)


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────


def run_foveal(*arguments: str, cwd: Path, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        filter(None, (str(Path(foveal.__file__).parent.parent), os.environ.get("PYTHONPATH")))
    )
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": path, **environ}
    return warm_start.run(["-m", "foveal.cli", *arguments], cwd=cwd, env=environment, encoding="utf-8")


def test_foveal_config_prints_every_value_with_its_source(folders: ConfigFolders) -> None:
    (folders.root / "foveal.toml").write_text("[context]\npolicy = 'rolling'\n[mcp.x]\ncommand = 'y'\n")
    done = run_foveal("config", cwd=folders.root, home=folders.user, FOVEAL_RESERVE="5")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row.split()[0]: row.split()[1:] for row in done.stdout.splitlines() if row}
    assert rows["context.policy"] == ["economy", "default"]
    assert rows["reserve"] == ["5", "FOVEAL_RESERVE"]
    asked = "is not used: you were not asked about it yet"
    assert f"note: {folders.root}/foveal.toml:4: server x {asked}" in done.stdout
    assert f"note: {folders.root}/foveal.toml:2: context.policy {asked}" in done.stdout


def test_foveal_config_prints_json_and_takes_an_agent(folders: ConfigFolders) -> None:
    (folders.user / ".config" / "foveal").mkdir(parents=True)
    (folders.user / ".config" / "foveal" / "foveal.toml").write_text(FULL)
    done = run_foveal(
        "config", "--json", "--agent", "reviewer", "--set", "margin=0.3", cwd=folders.root, home=folders.user
    )
    shown = json.loads(done.stdout)
    assert shown["values"]["context.policy"] == {
        "value": "recent-summary",
        "source": f"{folders.user}/.config/foveal/foveal.toml:53",
    }
    assert shown["values"]["margin"] == {"value": 0.3, "source": "flag margin"}
    assert (shown["root"], shown["project"]) == (str(folders.root), {})
    assert not any(name.startswith("agents.") for name in shown["values"])


def test_foveal_config_prints_errors_with_their_place(folders: ConfigFolders) -> None:
    (folders.root / "foveal.toml").write_text(
        "[context]\npolicy = '\x1b[31mx'.strip()\n".replace("\x1b", "\\u001b")
    )
    done = run_foveal("config", cwd=folders.root, home=folders.user)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"foveal: {folders.root}/foveal.toml:2: invalid TOML")
    (folders.root / "foveal.toml").write_text('[context]\npolicy = "\\u001b[31mx"\n')
    done = run_foveal("config", cwd=folders.root, home=folders.user)
    assert f"{folders.root}/foveal.toml:2: context.policy = " in done.stderr
    assert "\x1b" not in done.stderr
    done = run_foveal("config", "--set", "nonsense", cwd=folders.root, home=folders.user)
    assert "KEY=VALUE" in done.stderr


def test_foveal_doctor_prints_the_setup_without_keys(folders: ConfigFolders) -> None:
    done = run_foveal(
        "doctor",
        "--json",
        "--model",
        "openai/gpt-4.1",
        cwd=folders.root,
        home=folders.user,
        OPENAI_API_KEY="sk-9",
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["foveal"] == version_text()
    assert shown["model"].startswith("openai/gpt-4.1 (flag model)")
    assert shown["window"] == "1,047,576 tokens (the table of models)"
    assert shown["in the environment"] == "OPENAI_API_KEY"
    assert shown["SQLite"].startswith("3.")
    assert "not there yet" in shown["store"]
    assert {"Python", "tokenizer", "openai", "toktok", "local model", "configuration"} <= shown.keys()
    assert "sk-9" not in done.stdout + done.stderr


def test_foveal_doctor_continues_with_a_broken_configuration(folders: ConfigFolders) -> None:
    (folders.root / "foveal.toml").write_text("x = 1")
    done = run_foveal("doctor", cwd=folders.root, home=folders.user)
    assert done.returncode == 1
    assert "SQLite" in done.stdout
    assert f"{folders.root}/foveal.toml:1: there is no key x" in done.stdout


def test_foveal_doctor_reports_a_missing_api_key(folders: ConfigFolders) -> None:
    done = run_foveal("doctor", "--model", "anthropic/claude-sonnet-4-6", cwd=folders.root, home=folders.user)
    assert done.returncode == 0
    assert "no API key of a provider" in done.stdout
    assert "it cannot be called" in done.stdout


# ── Server keys ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ({"name": "a", "session": "s", "prompt": "p"}, "schedule a: cron is missing"),
        ({"session": "s", "cron": "* * * * *", "prompt": "p"}, "schedule 1: name is missing"),
        (GOOD_SCHEDULE | {"frog": "x"}, "schedule a: there is no frog; allowed are name, session, cron"),
        (GOOD_SCHEDULE | {"prompt": " "}, "schedule a: prompt must be a string that is not empty"),
        (GOOD_SCHEDULE | {"missed": "twice"}, "schedule a: missed must be once or skip, not twice"),
    ],
)
def test_an_error_in_a_schedule_names_the_schedule_and_field(tmp_path: Path, table: Any, shown: str) -> None:
    rows = "".join(f'{name} = "{value}"\n' for name, value in table.items())
    (tmp_path / "foveal.toml").write_text(f"[[schedule]]\n{rows}", encoding="utf-8")
    with pytest.raises(BadConfig, match=re.escape(shown)):
        load(tmp_path / "elsewhere", environ={}, user_folder=tmp_path)


def test_two_schedules_with_the_same_name_are_an_error(tmp_path: Path) -> None:
    rows = "".join(f'{name} = "{value}"\n' for name, value in GOOD_SCHEDULE.items())
    (tmp_path / "foveal.toml").write_text(f"[[schedule]]\n{rows}" * 2, encoding="utf-8")
    with pytest.raises(BadConfig, match="schedule a: another schedule has this name"):
        load(tmp_path / "elsewhere", environ={}, user_folder=tmp_path)


@pytest.mark.parametrize("text", ["42,43", "[42, 43]", "42 43"])
def test_a_list_may_be_a_toml_list_or_separated_by_commas(tmp_path: Path, text: str) -> None:
    loaded = load(tmp_path, flags={"telegram.allowed": text}, environ={}, user_folder=tmp_path)
    assert loaded.get("telegram.allowed") == (42, 43)


def test_an_unknown_section_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"there is no key foo\.bar; allowed are model, base_url"):
        load(tmp_path, flags={"foo.bar": "1"}, environ={}, user_folder=tmp_path)
