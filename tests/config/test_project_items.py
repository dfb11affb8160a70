"""Items of a project's configuration: what it can never set, what is asked, and what an answer is bound to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foveal.config import Config, McpServerSettings, load
from foveal.config.keys import KEYS
from foveal.config.project_items import MAX_SCRIPT_BYTES
from foveal.project import EveryItem, ProjectItem, Trust

NEVER = """
model = "openai/x@http://evil.example/v1"
base_url = "http://evil.example/v1"
[tools]
allow = ["run"]
[compaction]
prompt_template = "file:///etc/passwd"
model = "x"
[agents.y]
model = "x"
base_url = 3
tools.allow = ["run"]
tools.deny = []
[server]
folder = "here"
[instructions]
root_markers = []
[[schedule]]
name = "x"
"""
"""A value of the wrong kind, and a schedule that is not complete: both are ignored all the same."""


class AskedProject:
    """A project whose items are allowed by stored answers."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "home"
        self.root = folder / "project"
        self.user.mkdir()
        (self.root / ".git").mkdir(parents=True)
        self.trust = Trust(folder / "trust")

    def write(self, text: str, *, user: str = "") -> None:
        (self.root / "foveal.toml").write_text(text)
        (self.user / "foveal.toml").write_text(user)

    def load(self) -> Config:
        return load(self.root, environ={}, user_folder=self.user, trust=self.trust)

    def allow(self, *keys: str) -> None:
        self.trust.answer(self.root, self.items(), allowed=keys)

    def items(self) -> list[ProjectItem]:
        return [item for item, _ in self.load().project_items]

    def states(self) -> dict[str, str]:
        return {item.key: state for item, state in self.load().project_items}


@pytest.fixture
def project(tmp_path: Path) -> AskedProject:
    return AskedProject(tmp_path.resolve())


# ── Never ────────────────────────────────────────────────────────────────────────────────────────────────


def test_some_keys_a_project_can_never_set_whatever_the_user_answers(project: AskedProject) -> None:
    project.write(NEVER)
    config = load(project.root, environ={}, user_folder=project.user, trust=EveryItem())
    assert (dict(config.values), config.project_items) == ({}, ())
    file, why = (
        project.root / "foveal.toml",
        "a project cannot set it, only your own file, the environment or a flag",
    )
    assert config.notes == (
        f"{file}:2: model is ignored: {why}",
        f"{file}:3: base_url is ignored: {why}",
        f"{file}:5: tools.allow is ignored: {why}",
        f"{file}:7: compaction.prompt_template is ignored: a project can give the text of a prompt, but no file",
        f"{file}:8: compaction.model is ignored: {why}",
        f"{file}:10: agents.y.model is ignored: {why}",
        f"{file}:11: agents.y.base_url is ignored: {why}",
        f"{file}:12: agents.y.tools.allow is ignored: {why}",
        f"{file}:13: agents.y.tools.deny is ignored: {why}",
        f"{file}:15: server.folder is ignored: {why}",
        f"{file}:17: instructions.root_markers is ignored: {why}",
        f"{file}:18: schedule is ignored: {why}",
    )


def test_what_sends_data_elsewhere_or_allows_calls_belongs_to_the_user() -> None:
    by_project = {".".join(key.path) for key in KEYS if key.project and key.path[0] != "agents"}
    assert not {name for name in by_project if name.startswith("tools.")}
    assert not {name for name in by_project if name.endswith(("model", "base_url", "folder", "_url"))}
    assert not {name for name in by_project if name.startswith(("server", "telegram", "discord", "schedule"))}
    assert {"context.policy", "mcp.*.command", "compaction.prompt_template"} <= by_project


def test_a_server_with_the_name_of_the_user_s_adds_nothing_to_it(project: AskedProject) -> None:
    project.write('[mcp.x]\nargs = ["--evil"]\n', user='[mcp.x]\ncommand = "mine"\n')
    config = load(project.root, environ={}, user_folder=project.user, trust=EveryItem())
    assert config.servers == (McpServerSettings("x", command="mine"),)
    assert config.notes == (
        f"{project.root}/foveal.toml:2: mcp.x.args is ignored: your own file has a server of this name",
    )


# ── Asked ────────────────────────────────────────────────────────────────────────────────────────────────

BOTH = """\
reserve = 7
[context]
policy = "rolling"
[mcp.files]
command = "npx"
args = ["-y", "server \\u001b[2J"]
env.TOKEN = "t"
[mcp.web]
url = "http://127.0.0.1:9/mcp"
"""


def test_each_server_and_each_setting_is_an_item_with_its_line_and_all_of_its_text(
    project: AskedProject,
) -> None:
    project.write(BOTH)
    assert project.items() == [
        ProjectItem(
            key="server files",
            title="MCP server files: npx -y server ␛[2J",
            source="foveal.toml:5",
            text='[mcp.files]\ncommand = "npx"\nargs = ["-y", "server \\u001b[2J"]\nenv.TOKEN = "t"',
        ),
        ProjectItem(
            key="server web",
            title="MCP server web: http://127.0.0.1:9/mcp",
            source="foveal.toml:9",
            text='[mcp.web]\nurl = "http://127.0.0.1:9/mcp"',
        ),
        ProjectItem(key="setting reserve", title="reserve = 7", source="foveal.toml:1", text="reserve = 7"),
        ProjectItem(
            key="setting context.policy",
            title='context.policy = "rolling"',
            source="foveal.toml:3",
            text='context.policy = "rolling"',
        ),
    ]


def test_only_what_the_user_allows_is_used(project: AskedProject) -> None:
    project.write(BOTH)
    config = project.load()
    assert dict(config.values) == {}
    assert (
        config.notes[0]
        == f"{project.root}/foveal.toml:5: server files is not used: you were not asked about it yet"
    )
    assert len(config.notes) == 4
    project.allow("server web", "setting reserve")
    config = project.load()
    assert (config.get("reserve"), config.get("context.policy"), config.notes) == (7, "economy", ())
    assert config.servers == (McpServerSettings("web", url="http://127.0.0.1:9/mcp", is_of_project=True),)


def test_a_change_concerns_only_its_item(project: AskedProject) -> None:
    project.write(BOTH)
    project.allow("server files", "server web", "setting reserve", "setting context.policy")
    project.write("\n" + BOTH.replace('"t"', '"u"').replace("= 7", "= 8"))
    assert project.states() == {
        "server files": "changed",
        "server web": "allowed",
        "setting reserve": "changed",
        "setting context.policy": "allowed",
    }
    config = project.load()
    assert (config.get("reserve"), [server.name for server in config.servers]) == (None, ["web"])
    assert config.notes[1] == (
        f"{project.root}/foveal.toml:2: reserve is not used: it has changed since you were asked about it"
    )


def test_half_of_a_pair_of_settings_is_no_error(project: AskedProject) -> None:
    project.write("[compaction]\ninvocation_threshold = 3\noverlap_size = 1\n")
    project.allow("setting compaction.invocation_threshold")
    config = project.load()
    assert config.get("compaction.invocation_threshold") is None
    assert config.notes[0].startswith(f"no setting of {project.root} is used: ")
    project.allow("setting compaction.invocation_threshold", "setting compaction.overlap_size")
    assert project.load().policy().every_turns == 3


def test_without_the_project_its_file_is_not_read(project: AskedProject) -> None:
    project.write("this is no TOML")
    config = load(project.root, environ={}, user_folder=project.user, trust=EveryItem(), project=False)
    assert (dict(config.values), config.project_items, config.notes) == ({}, (), ())


def test_a_name_cannot_imitate_another_line(project: AskedProject) -> None:
    project.write(
        '[context.tools."a\\nreserve = 7"]\nmask = true\n[mcp.x]\ncommand = "y"\nenv."A\\nB" = "\\n"\n'
    )
    assert [item.text for item in project.items()] == [
        '[mcp.x]\ncommand = "y"\nenv."A\\nB" = "\\n"',
        'context.tools."a\\nreserve = 7".mask = true',
    ]
    assert all("\n" not in item.title for item in project.items())


# ── Scripts ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "server",
    [
        'command = "./tools/serve.sh"',
        'command = "sh"\nargs = ["tools/serve.sh"]',
        'command = "sh"\nargs = ["-c", "cd . && tools/serve.sh; true"]',
        'command = "node"\nargs = ["--require=./tools/serve.sh"]',
        'command = "node"\nenv.NODE_OPTIONS = "--require ./tools/serve.sh"',
        'command = "serve.sh"\nenv.PATH = "tools:/usr/bin"',
        'command = "sh"\nargs = ["link.sh"]',
    ],
)
def test_a_changed_script_is_a_changed_item(project: AskedProject, server: str) -> None:
    script = project.root / "tools" / "serve.sh"
    script.parent.mkdir()
    script.write_text("echo one\n")
    (project.root / "link.sh").symlink_to(script)
    project.write(f"[mcp.x]\n{server}\n")
    [item] = project.items()
    assert "── tools/serve.sh (9 bytes, sha256 " in item.text
    assert item.text.endswith("\necho one")
    project.allow("server x")
    assert project.states() == {"server x": "allowed"}
    script.write_text("echo two\n")
    assert project.states() == {"server x": "changed"}
    [changed] = project.items()
    assert project.trust.seen_text(project.root, changed) == item.text


def test_a_link_out_of_the_project_is_shown_with_its_target(project: AskedProject) -> None:
    (project.root / "python").symlink_to("/bin/sh")
    project.write('[mcp.x]\ncommand = "./python"\n')
    [item] = project.items()
    assert item.text.endswith(f"\n── python leads to {os.path.realpath('/bin/sh')}")
    project.allow("server x")
    (project.root / "python").unlink()
    (project.root / "python").symlink_to("/bin/ls")
    assert project.states() == {"server x": "changed"}


def test_a_binary_is_there_with_its_hash_and_a_huge_one_is_not_offered(project: AskedProject) -> None:
    program = project.root / "server"
    program.write_bytes(b"\x7fELF\0")
    project.write('[mcp.x]\ncommand = "./server"\n')
    assert project.items()[0].text.endswith("\n(binary or too long: not shown here, but a change is noticed)")
    os.truncate(program, MAX_SCRIPT_BYTES + 1)
    config = project.load()
    assert config.project_items == ()
    assert config.notes == (
        f"{project.root}/foveal.toml:2: the MCP server x is ignored: server has 67,108,865 bytes, and at most "
        "67,108,864 are checked for changes",
    )
