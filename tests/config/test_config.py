"""The configuration: where values come from, what is refused and where that stands, and what they mean."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import Limits
from foveal.config import BadConfig, Config, ServerSettings, dotted, find, line_of, lines, load
from foveal.config.keys import KEYS
from foveal.core.engine import engine_settings
from foveal.core.policies import PRESETS, policy
from foveal.errors import BadSetting
from foveal.instructions import MARKERS, InstructionRules
from foveal.project import Trust
from support.effort import bounded
from support.paths import ROOT


class Place:
    """A home and a project on a real disk."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "home"
        self.root = folder / "project"
        self.user.mkdir()
        (self.root / ".git").mkdir(parents=True)
        self.trust = Trust(folder / "trust.json")
        self.trust.trust(self.root, yes=True)

    def load(
        self, *, user: str = "", project: str = "", environ: Mapping[str, str] | None = None, **flags: Any
    ) -> Config:
        for text, where in ((user, self.user), (project, self.root)):
            (where / "foveal.toml").write_text(text)
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load(self.root, flags=named, environ=environ or {}, user_folder=self.user, trust=self.trust)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


# ── where values come from ───────────────────────────────────────────────────────────────────────────────


def test_without_anything_set_every_value_is_its_default(place: Place) -> None:
    config = load(place.root, environ={}, user_folder=place.user, trust=place.trust)
    assert dict(config.values) == {}
    assert config.files == ((place.user / "foveal.toml", False), (place.root / "foveal.toml", False))
    assert {str(entry.source) for entry in config.entries()} == {"default", "policy economy"}
    assert config.policy() == PRESETS["economy"]
    assert config.rules == InstructionRules()
    assert (config.model, config.summariser, config.servers, config.agents) == ("", "", (), ())


def test_the_order_is_user_project_environment_flags(place: Place) -> None:
    user, project = "max_input_tokens = 1_000\nreserve = 1", "\nmax_input_tokens = 2_000"
    variable = {"FOVEAL_MAX_INPUT_TOKENS": "3000"}

    def told(config: Config) -> tuple[int, str]:
        return config.get("max_input_tokens"), str(config.source("max_input_tokens"))

    assert told(place.load(user=user)) == (1_000, f"{place.user}/foveal.toml:1")
    both = place.load(user=user, project=project)
    assert told(both) == (2_000, f"{place.root}/foveal.toml:2")
    assert both.get("reserve") == 1
    assert told(place.load(user=user, project=project, environ=variable)) == (
        3_000,
        "FOVEAL_MAX_INPUT_TOKENS",
    )
    config = place.load(user=user, project=project, environ=variable, max_input_tokens=4_000)
    assert told(config) == (4_000, "flag max_input_tokens")
    assert told(place.load(user=user, max_input_tokens=None)) == (1_000, f"{place.user}/foveal.toml:1")


def test_the_project_file_is_the_one_in_the_root(place: Place) -> None:
    (place.root / "a" / "b").mkdir(parents=True)
    (place.root / "foveal.toml").write_text("reserve = 7")
    (place.root / "a" / "foveal.toml").write_text("reserve = 8")
    config = load(place.root / "a" / "b", environ={}, user_folder=place.user, trust=place.trust)
    assert (config.get("reserve"), config.root) == (7, place.root)


def test_root_markers_decide_which_project_file_is_read_and_no_project_may_set_them(place: Place) -> None:
    (place.root / "sub").mkdir()
    (place.root / "sub" / "foveal.toml").write_text("reserve = 8")
    (place.user / "foveal.toml").write_text("[instructions]\nroot_markers = []")
    config = load(place.root / "sub", environ={}, user_folder=place.user, trust=place.trust)
    assert config.get("reserve") == 8
    assert config.rules.root_markers == ()
    with pytest.raises(
        BadConfig, match=r"foveal.toml:2: instructions.root_markers cannot be set by a project"
    ):
        place.load(project='[instructions]\nroot_markers = [".hg"]')


def test_texts_of_variables_and_flags_become_what_the_key_takes(place: Place) -> None:
    environ = {
        "FOVEAL_MODEL": "openai/gpt-4.1",
        "FOVEAL_MARGIN": "0.2",
        "FOVEAL_WINDOW": "128_000",
        "FOVEAL_TOOLS_ALLOW": "read, list",
        "FOVEAL_CONTEXT_POLICY": "rolling",
        "FOVEAL_RESERVE": "",
    }
    config = place.load(environ=environ, context__tools__bash__mask="false")
    assert config.model == "openai/gpt-4.1"
    assert (config.get("margin"), config.get("window"), config.get("reserve")) == (0.2, 128_000, None)
    assert config.get("tools.allow") == ("read", "list")
    assert config.policy() == policy("rolling", exempt_tools=("bash",))
    assert str(config.source("context.tools.bash.mask")) == "flag context.tools.bash.mask"


def test_a_variable_that_means_nothing_is_told_of_and_no_error(place: Place) -> None:
    config = place.load(environ={"FOVEAL_POLICY": "x", "FOVEAL_STORE": "y", "HOME": "z"})
    assert config.notes == ("FOVEAL_POLICY is set, and means nothing here",)


def test_a_user_who_works_in_his_own_folder_has_one_file_and_not_two(place: Place) -> None:
    (place.user / "foveal.toml").write_text('model = "gpt-4.1"')
    config = load(place.user, environ={}, user_folder=place.user, trust=place.trust)
    assert config.source("model").kind == "user"
    assert config.notes == ()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "told"),
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
        ("max_input_tokens = true", ":1: max_input_tokens = True is not allowed: a whole number"),
        ("margin = nan", ":1: margin = nan is not allowed: a number from 0 to 0.9"),
        (
            "[compaction]\ninvocation_threshold = 0\noverlap_size = 0",
            ":2: compaction.invocation_threshold = 0 is",
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
        ("[mcp.x]\nurl = 'ftp://x'", ":2: mcp.x.url = 'ftp://x' is not allowed: an address that begins with"),
        ("[tools]\nallow = 'all'", ":2: tools.allow = 'all' is not allowed: a list of texts"),
        (
            "[instructions]\nfallback_names = ['../x']",
            ":2: instructions.fallback_names = ['../x'] is not allowed",
        ),
        ("a = 1\nb = = 2", ":2: no TOML: "),
        ("reserve = 1\nreserve = 2", ":2: no TOML: Cannot overwrite a value"),
        ("[[agents]]\nmodel = 'x'", ":1: agents = list is not allowed: a table with a name of your own"),
    ],
)
def test_an_error_names_the_file_the_line_and_what_is_allowed(place: Place, text: str, told: str) -> None:
    with pytest.raises(BadConfig) as caught:
        place.load(user=text)
    assert str(caught.value).startswith(f"{place.user}/foveal.toml{told}")


def test_an_error_in_a_variable_or_a_flag_names_it(place: Place) -> None:
    with pytest.raises(BadConfig, match=r"^FOVEAL_WINDOW: window = 'many' is not allowed: a whole number"):
        place.load(environ={"FOVEAL_WINDOW": "many"})
    with pytest.raises(BadConfig, match=r"^flag window: window = 0 is not allowed: a whole number"):
        place.load(window=0)
    with pytest.raises(BadConfig, match=r"^flag context.x: there is no key context.x; allowed"):
        place.load(context__x="1")


def test_an_error_tells_no_secret(place: Place) -> None:
    for text in (
        "api_key = 'sk-123'",
        "[mcp.x]\ncommand = 'y'\nenv = 'sk-123'",
        "[mcp.x]\ncommand = 'y'\nenv = { TOKEN = 3, KEY = 'sk-123' }",
        "[mcp.x]\ncommand = 'y'\nargs = ['sk-123', 3]",
        "mcp = 'sk-123'",
    ):
        with pytest.raises(BadConfig) as caught:
            place.load(user=text)
        assert "sk-123" not in f"{caught.value} {caught.value!r} {caught.value.args}"
    with pytest.raises(BadConfig, match="keys of providers belong in the environment"):
        place.load(user="api_key = 'sk-123'")


def test_values_that_do_not_go_together_are_refused_where_they_stand(place: Place) -> None:
    with pytest.raises(
        BadConfig, match=r":3: compaction.overlap_size = 2 is not allowed: without compaction.inv"
    ):
        place.load(user="\n[compaction]\noverlap_size = 2")
    with pytest.raises(BadConfig, match=r":2: compaction.invocation_threshold = 5 .* give both, or neither"):
        place.load(user="[agents.x.compaction]\ninvocation_threshold = 5")
    sliding = "[context]\npolicy = 'sliding-summary'\n[compaction]\ninvocation_threshold = 9"
    assert place.load(user=sliding).policy() == policy("sliding-summary", every_turns=9)
    assert place.load(user="[compaction]\ntoken_threshold = 9_000").policy().act_tokens == 9_000


def test_a_file_that_is_none_is_refused_and_nothing_waits_for_it(place: Place) -> None:
    path = place.root / "foveal.toml"
    os.mkfifo(path)
    with pytest.raises(BadConfig, match=r"foveal\.toml: this file is not usable: it is a pipe"):
        load(place.root, environ={}, user_folder=place.user, trust=place.trust)
    path.unlink()
    (place.root.parent / "secret").write_text("x = 1")
    path.symlink_to("../secret")
    with pytest.raises(BadConfig, match="a link that leads out of the project"):
        load(place.root, environ={}, user_folder=place.user, trust=place.trust)
    path.unlink()
    path.write_bytes(b"model = '\xff'")
    with pytest.raises(BadConfig, match="a configuration is UTF-8 of at most 262,144 bytes"):
        load(place.root, environ={}, user_folder=place.user, trust=place.trust)
    path.write_text("#" * 300_000)
    with pytest.raises(BadConfig, match="a configuration is UTF-8 of at most 262,144 bytes"):
        load(place.root, environ={}, user_folder=place.user, trust=place.trust)


RISKY = """
model = "openai/x@http://evil.example/v1"
base_url = "http://evil.example/v1"
max_input_tokens = 9_000
[tools]
allow = ["run"]
[compaction]
prompt_template = "file:///etc/passwd"
model = "x"
threshold = 0.5
[instructions]
fallback_names = [".env"]
[mcp.x]
command = "sh"
args = ["-c", "rm"]
[agents.y]
model = "x"
max_output_tokens = 100
"""


@pytest.mark.parametrize("said", [None, False])
def test_an_untrusted_project_may_set_nothing_that_runs_sends_or_reads(
    place: Place, said: bool | None
) -> None:
    place.trust.forget(place.root)
    if said is not None:
        place.trust.trust(place.root, yes=said)
    config = place.load(project=RISKY)
    assert {dotted(path) for path in config.values} == {
        "max_input_tokens",
        "compaction.threshold",
        "agents.y.max_output_tokens",
    }
    assert config.notes[0] == (
        f"{place.root}/foveal.toml:2: model does not count, because {place.root} is not trusted"
    )
    assert len(config.notes) == 9
    place.trust.trust(place.root, yes=True)
    assert place.load(project=RISKY).notes == ()


def test_what_an_untrusted_project_may_set_are_sizes_and_choices() -> None:
    safe = {key.path for key in KEYS if key.safe and key.project and key.path[0] != "agents"}
    named = {".".join(path) for path in safe}
    assert not {name for name in named if name.startswith(("mcp", "model", "base_url")) or "allow" in name}
    assert {"context.policy", "compaction.mode", "tools.deny", "instructions.max_bytes"} <= named


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────

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


def test_the_line_of_a_key_is_found_whatever_stands_around_it() -> None:
    found = lines(TOML)
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
def test_every_key_of_a_generated_file_is_found_on_its_line(tables: dict[str, dict[str, str]]) -> None:
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
    found = lines(text)
    assert {path: found[path] for path in where} == where


def test_a_hostile_file_costs_no_more_than_a_moment() -> None:
    with bounded():
        assert lines('x = """\n' + "]\n" * 100_000 + '"""\ny = 1\n') == {}


# ── what they mean ───────────────────────────────────────────────────────────────────────────────────────

FULL = """
model = "openai/gpt-4.1"
window = 100_000
max_input_tokens = 80_000
max_output_tokens = 4_000
tokenizer = "estimate"

[context]
policy = "rolling"
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
mode = "confirm"
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
url = "https://me:secret@example.org/mcp?key=sk-123"

[agents.reviewer]
model = "anthropic/claude-sonnet-4-6"
[agents.reviewer.context]
policy = "recent-summary"
[agents.reviewer.compaction]
invocation_threshold = 2
"""


def test_the_names_of_the_configuration_are_values_of_the_policy(place: Place) -> None:
    config = place.load(user=FULL)
    assert config.policy(window=100_000) == policy(
        "rolling",
        max_history_tokens=30_000,
        keep_first=1,
        keep_last=9,
        clip=Limits(strategy="both", tokens=5_000),
        clip_tools={
            "bash": Limits(strategy="tail", tokens=2_000),
            "grep": Limits(strategy="both", tokens=None),
        },
        exempt_tools=("read_plan",),
        mode="confirm",
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


def test_the_keyword_arguments_are_those_that_a_session_takes(place: Place) -> None:
    (place.user / "prompts").mkdir()
    (place.user / "prompts" / "mine.md").write_text("Summarise.")
    config = place.load(user=FULL)
    arguments = config.session(config.model)
    assert arguments.pop("prompt") == f"file://{place.user}/prompts/mine.md"
    made = engine_settings(config.model, **arguments)
    assert (made.model.window, made.caps.max_input_tokens, made.caps.reserve) == (100_000, 80_000, 4_000)
    assert (made.counter.name, made.policy) == ("estimate", config.policy(window=100_000))
    assert place.load().session("gpt-4.1") == {
        "policy": PRESETS["economy"],
        "prompt": "",
        "margin": 0.1,
        "tokenizer": "auto",
    }


def test_a_share_of_the_window_needs_to_know_the_window(place: Place) -> None:
    config = place.load(user="[compaction]\nsafety_ratio = 0.5")
    assert config.session(foveal.model("gpt-4.1", window=60_000))["policy"].act_tokens == 30_000
    assert config.session("gpt-4.1")["policy"].act_tokens == foveal.model("gpt-4.1").window // 2


def test_no_history_cap_takes_away_that_of_the_policy(place: Place) -> None:
    config = place.load(
        user="[context]\npolicy = 'rolling'\nmax_history_tokens = 0\nmax_tool_result_tokens = 0"
    )
    assert (config.policy().max_history_tokens, config.policy().clip) == (0, Limits(strategy="head"))


def test_a_named_agent_has_its_own_values_before_those_of_the_files(place: Place) -> None:
    config = place.load(user=FULL)
    reviewer = config.agent("reviewer")
    assert config.agents == ("reviewer",)
    assert reviewer.model == "anthropic/claude-sonnet-4-6"
    assert (reviewer.policy().name, reviewer.policy().every_turns) == ("recent-summary", 2)
    assert reviewer.get("max_input_tokens") == 80_000
    assert place.load(user=FULL, model="gpt-5").agent("reviewer").model == "gpt-5"
    with pytest.raises(BadSetting, match="agent = 'other' is not allowed: one of reviewer"):
        config.agent("other")


def test_servers_are_started_or_called(place: Place) -> None:
    assert place.load(user=FULL).servers == (
        ServerSettings("files", command="npx", args=("server",), env={"TOKEN": "sk-123"}),
        ServerSettings("web", url="https://me:secret@example.org/mcp?key=sk-123"),
    )


def test_a_base_url_goes_with_the_name_of_the_model(place: Place) -> None:
    config = place.load(user="model = 'vllm/x'\nbase_url = 'http://10.0.0.7:8000/v1'")
    assert config.model == "vllm/x@http://10.0.0.7:8000/v1"


def test_nothing_in_a_configuration_can_be_changed(place: Place) -> None:
    config = place.load(user=FULL)
    with pytest.raises(TypeError):
        config.values["model",] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        config.servers[0].env["TOKEN"] = ""  # type: ignore[index]
    assert isinstance(config.get("tools.allow"), tuple)


def test_every_value_is_listed_with_its_source_and_without_secrets(place: Place) -> None:
    entries = {entry.name: entry for entry in place.load(user=FULL).entries()}
    assert {dotted(key.path) for key in KEYS if "*" not in key.path} <= entries.keys()
    assert str(entries["context.tools.bash.tool_result_truncation"].source) == f"{place.user}/foveal.toml:18"
    assert entries["mcp.files.env"].value == {"TOKEN": "…"}
    assert entries["mcp.web.url"].value == "https://example.org/mcp"
    assert "sk-123" not in str(entries)
    assert "secret" not in str(entries)


def test_every_key_says_what_it_is_and_its_default_is_allowed() -> None:
    assert len({key.path for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert key.about
        assert find(key.path) is key
        assert key.default is None or key.kind.fits(key.default) or key.default == ""
    assert find(("instructions", "root_markers")).default == list(MARKERS)  # type: ignore[union-attr]


GOOD_SCHEDULE = {"name": "a", "session": "s", "cron": "* * * * *", "prompt": "p"}
PAGE = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


def test_the_page_about_the_configuration_lists_every_key_with_its_default_and_who_may_set_it() -> None:
    rows = [row.strip("| ").split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]
    told = {row[0].strip("`"): [row[1], row[2], row[4]] for row in rows}
    known = {}
    for key in KEYS:
        if key.path[0] != "agents":
            default = "–" if key.default is None else str(key.default).replace("'", '"') or '""'
            who = ("yes" if key.safe else "trusted") if key.project else "no"
            known[".".join(key.path).replace("*", "NAME")] = [default, key.kind.allowed, who]
    assert told == known


def test_the_example_on_the_page_is_a_configuration(place: Place) -> None:
    example = PAGE.split("```toml\n")[1].split("```")[0]
    assert place.load(user=example).agents == ("reviewer",)


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────────


def foveal_(*arguments: str, cwd: Path, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        filter(None, (str(Path(foveal.__file__).parent.parent), os.environ.get("PYTHONPATH")))
    )
    return subprocess.run(
        [sys.executable, "-m", "foveal.apps", *arguments],
        cwd=cwd,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_foveal_config_prints_every_value_with_its_source(place: Place) -> None:
    (place.root / "foveal.toml").write_text("[context]\npolicy = 'rolling'\n[mcp.x]\ncommand = 'y'\n")
    done = foveal_("config", cwd=place.root, home=place.user, FOVEAL_RESERVE="5")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row.split()[0]: row.split()[1:] for row in done.stdout.splitlines() if row}
    assert rows["context.policy"] == ["rolling", f"{place.root}/foveal.toml:2"]
    assert rows["context.tool_result_keep_last"] == ["5", "policy", "rolling"]
    assert rows["reserve"] == ["5", "FOVEAL_RESERVE"]
    assert "mcp.x.command does not count, because" in done.stdout


def test_foveal_config_as_json_and_for_an_agent(place: Place) -> None:
    (place.user / ".config" / "foveal").mkdir(parents=True)
    (place.user / ".config" / "foveal" / "foveal.toml").write_text(FULL)
    done = foveal_(
        "config", "--json", "--agent", "reviewer", "--set", "margin=0.3", cwd=place.root, home=place.user
    )
    told = json.loads(done.stdout)
    assert told["values"]["context.policy"] == {
        "value": "recent-summary",
        "source": f"{place.user}/.config/foveal/foveal.toml:53",
    }
    assert told["values"]["margin"] == {"value": 0.3, "source": "flag margin"}
    assert (told["root"], told["trusted"]) == (str(place.root), None)
    assert not any(name.startswith("agents.") for name in told["values"])


def test_foveal_config_says_what_is_wrong_and_where(place: Place) -> None:
    (place.root / "foveal.toml").write_text(
        "[context]\npolicy = '\x1b[31mx'.strip()\n".replace("\x1b", "\\u001b")
    )
    done = foveal_("config", cwd=place.root, home=place.user)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"foveal: {place.root}/foveal.toml:2: no TOML")
    (place.root / "foveal.toml").write_text('[context]\npolicy = "\\u001b[31mx"\n')
    done = foveal_("config", cwd=place.root, home=place.user)
    assert f"{place.root}/foveal.toml:2: context.policy = " in done.stderr
    assert "\x1b" not in done.stderr
    done = foveal_("config", "--set", "nonsense", cwd=place.root, home=place.user)
    assert "KEY=VALUE" in done.stderr


def test_foveal_doctor_says_what_is_set_up_and_tells_no_key(place: Place) -> None:
    done = foveal_(
        "doctor",
        "--json",
        "--model",
        "openai/gpt-4.1",
        cwd=place.root,
        home=place.user,
        OPENAI_API_KEY="sk-9",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["foveal"] == foveal.__version__
    assert told["model"].startswith("openai/gpt-4.1 (flag model)")
    assert told["window"] == "1,047,576 tokens (the table of models)"
    assert told["in the environment"] == "OPENAI_API_KEY"
    assert told["SQLite"].startswith("3.")
    assert "not there yet" in told["store"]
    assert {"Python", "tokenizer", "openai", "toktok", "local model", "configuration"} <= told.keys()
    assert "sk-9" not in done.stdout + done.stderr


def test_foveal_doctor_goes_on_when_the_configuration_is_broken(place: Place) -> None:
    (place.root / "foveal.toml").write_text("x = 1")
    done = foveal_("doctor", cwd=place.root, home=place.user)
    assert done.returncode == 1
    assert "SQLite" in done.stdout
    assert f"{place.root}/foveal.toml:1: there is no key x" in done.stdout


def test_a_key_is_missing_and_the_doctor_says_so(place: Place) -> None:
    done = foveal_("doctor", "--model", "anthropic/claude-sonnet-4-6", cwd=place.root, home=place.user)
    assert done.returncode == 0
    assert "no key of a provider" in done.stdout
    assert "it cannot be asked" in done.stdout


# ── what a server is told ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"name": "a", "session": "s", "prompt": "p"}, "schedule a: cron is missing"),
        ({"session": "s", "cron": "* * * * *", "prompt": "p"}, "schedule 1: name is missing"),
        (GOOD_SCHEDULE | {"frog": "x"}, "schedule a: there is no frog; allowed are name, session, cron"),
        (GOOD_SCHEDULE | {"prompt": " "}, "schedule a: prompt is a text that is not empty"),
        (GOOD_SCHEDULE | {"missed": "twice"}, "schedule a: missed is once or skip, not twice"),
    ],
)
def test_a_wrong_schedule_is_told_by_its_name_and_field(tmp_path: Path, table: Any, told: str) -> None:
    rows = "".join(f'{name} = "{value}"\n' for name, value in table.items())
    (tmp_path / "foveal.toml").write_text(f"[[schedule]]\n{rows}", encoding="utf-8")
    with pytest.raises(BadConfig, match=re.escape(told)):
        load(tmp_path / "elsewhere", environ={}, user_folder=tmp_path)


def test_two_schedules_of_one_name_are_refused(tmp_path: Path) -> None:
    rows = "".join(f'{name} = "{value}"\n' for name, value in GOOD_SCHEDULE.items())
    (tmp_path / "foveal.toml").write_text(f"[[schedule]]\n{rows}" * 2, encoding="utf-8")
    with pytest.raises(BadConfig, match="schedule a: another one has this name"):
        load(tmp_path / "elsewhere", environ={}, user_folder=tmp_path)


@pytest.mark.parametrize("text", ["42,43", "[42, 43]", "42 43"])
def test_a_list_can_be_given_as_people_write_one_and_as_toml_does(tmp_path: Path, text: str) -> None:
    loaded = load(tmp_path, flags={"telegram.allowed": text}, environ={}, user_folder=tmp_path)
    assert loaded.get("telegram.allowed") == (42, 43)


def test_an_unknown_section_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"there is no key foo\.bar; allowed are model, base_url"):
        load(tmp_path, flags={"foo.bar": "1"}, environ={}, user_folder=tmp_path)
