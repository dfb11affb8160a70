"""Items of a project's configuration: what it can never set, what is asked, and what an answer is bound to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foveal.config import Config, McpServerSettings, load
from foveal.config.keys import KEYS
from foveal.config.project import EveryItem, GivenItems, ProjectItem, Trust
from foveal.config.project_items import MAX_FOLDER_FILES, MAX_SCRIPT_BYTES

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
command = "files"
args = ["-y", "server\\u001bc"]
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
            title="MCP server files: files -y server␛c",
            source="foveal.toml:5",
            text='[mcp.files]\ncommand = "files"\nargs = ["-y", "server\\u001bc"]\nenv.TOKEN = "t"',
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
    assert [item.text.partition("\n\n")[0] for item in project.items()] == [
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
        'command = "serve.sh"\nenv.PATH = "tools:/usr/bin"',
        'command = "sh"\nargs = ["link.sh"]',
        'command = "python3"\nargs = ["tools"]',
        'command = "python3"\nargs = ["-u", "tools/"]',
        'command = "python3"\nargs = ["-m", "tools.pkg.m"]',
        'command = "python3"\nargs = ["-Bmtools"]',
        'command = "python3"\nargs = ["-m", "x"]\nenv.PYTHONPATH = "tools"',
        'command = "files"\nargs = ["--root=tools"]',
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


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ('command = "sh"\nargs = ["-c", "cd tools && ./serve.sh"]', "a word of it has a blank"),
        ('command = "bash"\nargs = ["-c", "serve.sh"]\nenv.PATH = "tools"', "bash gets more than the path"),
        ('command = "bash"\nargs = ["+x", "tools/serve.sh"]', "bash gets more than the path"),
        ('command = "sh"\nargs = ["$PWD/tools/serve.sh"]', "a word of it has $"),
        ("command = 'tools/ser\\ve.sh'", "a word of it has \\"),
        ('command = "env"\nargs = ["-C", "tools", "./serve.sh"]', "env starts other programs"),
        ('command = "npx"\nargs = ["-y", "files"]', "npx starts other programs"),
        ('command = "make"\nargs = ["serve"]', "make starts other programs"),
        ('command = "busybox"\nargs = ["sh", "tools/serve.sh"]', "busybox starts other programs"),
        ('command = "awk"\nargs = ["tools/serve.sh"]', "awk starts other programs"),
        ('command = "./shell"\nargs = ["-c", "serve.sh"]', "./shell gets more than the path"),
        ('command = "node"\nargs = ["--require=./tools/serve.sh"]', "node gets more than the path"),
        ('command = "node"\nargs = ["tools/serve"]', "node gets more than the path"),
        ('command = "node"', "node gets more than the path"),
        (
            'command = "node"\nargs = ["tools/serve.sh"]\nenv.NODE_OPTIONS = "-r=x"',
            "NODE_OPTIONS can have code",
        ),
        ('command = "python3"\nargs = ["-c", "1"]', "python3 gets more than the path"),
        ('command = "python3"\nargs = ["."]', "the folder . is too large"),
        ('command = "python3"\nargs = ["linked"]', "the folder linked is too large or has links"),
        ('command = "python3"\nargs = ["large"]', "the folder large is too large"),
    ],
)
def test_a_server_that_cannot_be_bound_to_its_code_is_asked_about_at_each_start(
    project: AskedProject, server: str, why: str
) -> None:
    for name in ("tools", "linked", "large"):
        (project.root / name).mkdir()
    (project.root / "tools/serve.sh").write_text("echo one\n")
    (project.root / "shell").symlink_to("/bin/sh")
    (project.root / "linked/tools").symlink_to("../tools")
    for number in range(MAX_FOLDER_FILES + 1):
        (project.root / f"large/{number}.py").touch()
    project.write(f"[mcp.x]\n{server}\n")
    [item] = project.items()
    note = "Foveal asks at each start: an answer cannot be bound to the code, because "
    assert why in item.text.rpartition(note)[2]
    assert project.states() == {"server x": "unbound"}
    project.allow("server x")
    assert project.states() == {"server x": "allowed"}
    next_start = Trust(project.trust.folder)
    assert (next_start.state(project.root, item), next_start.seen_text(project.root, item)) == (
        "unbound",
        None,
    )
    assert GivenItems([item]).state(project.root, item) == "unbound"


@pytest.mark.parametrize(("name", "args"), [("m.py", '["-m", "m"]'), ("m/__main__.py", '["-m", "m.sub"]')])
def test_a_module_that_appears_in_the_project_is_a_changed_item(
    project: AskedProject, name: str, args: str
) -> None:
    project.write(f'[mcp.x]\ncommand = "python3"\nargs = {args}\n')
    project.allow("server x")
    assert project.states() == {"server x": "allowed"}
    (project.root / name).parent.mkdir(exist_ok=True)
    (project.root / name).write_text("print()\n")
    assert project.states() == {"server x": "changed"}


def test_a_link_out_of_the_project_is_shown_with_its_target(project: AskedProject) -> None:
    (project.root / "tool").symlink_to("/bin/cat")
    project.write('[mcp.x]\ncommand = "./tool"\n')
    [item] = project.items()
    assert item.text.endswith(f"\n── tool leads to {os.path.realpath('/bin/cat')}")
    project.allow("server x")
    (project.root / "tool").unlink()
    (project.root / "tool").symlink_to("/bin/ls")
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
