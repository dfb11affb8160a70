"""`foveal wrap` and `foveal unwrap`: real coding agents through a server, with one command.

FOVEAL_SOAK=1 runs all of them and installs them; without it, only Claude Code and Codex run, where they are
installed already. The provider is a stand-in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import foveal
from foveal.cli import wrap
from foveal.cli.__main__ import main
from foveal.cli.wrap.coding_agents import AGENTS, WrappedServer
from support import warm_start
from support.agent_upstream import AgentUpstream
from support.coding_clients import AIDER, OPENCODE
from support.effort import rest_in_soak
from support.npm_clients import (
    CLAUDE_CODE,
    CODEX,
    NO_PROXY_PORT,
    Client,
    client_home,
    installed,
    is_installed,
)
from support.serve_process import Server, ask, serving, until
from support.terminal import CTRL_C, Terminal

PROMPT: Final = "Find a part."
KEYS: Final = {"OPENAI_API_KEY": "sk-of-the-client", "ANTHROPIC_API_KEY": "sk-ant-of-the-client"}
SILENT_AIDER: Final = [
    "--no-git", "--yes-always", "--no-pretty", "--no-check-update", "--no-show-release-notes",
    "--analytics-disable", "--no-show-model-warnings", "--no-suggest-shell-commands",
]  # fmt: skip


class Case(NamedTuple):
    """An agent, and how it is run for one turn."""

    client: Client
    arguments: list[str]
    environment: dict[str, str]
    file: str
    """Its settings file in the home folder."""
    has_tools: bool = True


CLAUDE: Final = Case(
    CLAUDE_CODE,
    ["-p", PROMPT, "--model", "claude-sonnet-4-5", "--allowedTools", "Bash,Read"],
    {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ".claude/settings.json",
)
CASES: Final = [
    CLAUDE,
    Case(
        CODEX,
        ["exec", "--skip-git-repo-check", "--sandbox", "read-only", "-m", "gpt-5.1-codex", PROMPT],
        {},
        ".codex/config.toml",
    ),
    Case(
        OPENCODE,
        ["run", "--auto", "-m", "openai/gpt-4.1", PROMPT],
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        ".config/opencode/opencode.json",
    ),
    Case(
        AIDER,
        ["--model", "openai/gpt-4.1", *SILENT_AIDER, "--message", PROMPT],
        {"TERM": "dumb", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        ".aider.conf.yml",
        has_tools=False,
    ),
]
each_agent = pytest.mark.parametrize("case", CASES, ids=lambda case: case.client.program)


@pytest.fixture
def home() -> Iterator[Path]:
    with client_home() as made:
        yield made


def program_folder(client: Client) -> str:
    if not os.environ.get("FOVEAL_SOAK") and (client not in (CLAUDE_CODE, CODEX) or not is_installed(client)):
        pytest.skip(f"{client.program}: FOVEAL_SOAK=1 installs and runs it")
    return str(installed(client).parent)


def environment(home: Path, folder: str, **more: str) -> dict[str, str]:
    nowhere = f"http://127.0.0.1:{NO_PROXY_PORT}"
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost"}
    return {
        "PATH": os.pathsep.join([folder, os.environ["PATH"]]),
        "PYTHONPATH": str(Path(foveal.__file__).parents[1]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        **proxies,
        **more,
    }


def run(command: list[str], home: Path, environ: dict[str, str]) -> str:
    """Run an agent, or a command of Foveal; the latter is no new interpreter."""
    how: dict[str, Any] = {
        "cwd": home / "work", "env": environ, "stdin": subprocess.DEVNULL, "encoding": "utf-8", "timeout": 240
    }  # fmt: skip
    if command[0] == sys.executable:
        done = warm_start.run(command[1:], **how)
    else:
        done = subprocess.run(command, capture_output=True, check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def foveal_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "foveal.cli", *words]


def upstream_for(case: Case) -> AgentUpstream:
    upstream = AgentUpstream(has_tools=case.has_tools)
    upstream.steps = 1
    return upstream


def exchanges(log: str) -> list[int]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line["status"] for line in lines if line["event"] == "exchange"]


@pytest.mark.long
@each_agent
def test_an_agent_runs_through_a_server_of_its_own_and_nothing_is_written(case: Case, home: Path) -> None:
    folder = program_folder(case.client)
    with upstream_for(case) as upstream:
        urls = {"OPENAI_BASE_URL": upstream.openai, "ANTHROPIC_BASE_URL": upstream.anthropic}
        environ = environment(home, folder, **KEYS, **urls, **case.environment)
        command = foveal_command("wrap", case.client.program, "--", *case.arguments)
        assert "Turn 1 is done." in run(command, home, environ)
        assert upstream.faults == []
    log = home / f".local/state/foveal/wrap/{case.client.program}.log"
    statuses = exchanges(log.read_text("utf-8"))
    assert statuses == [200] * len(upstream.requests)
    assert not any("8790" in text or "Foveal" in text for text in settings_texts(home / case.file))


def settings_texts(file: Path) -> list[str]:
    """Return the text of the file, which some agents create themselves."""
    return [file.read_text("utf-8")] if file.exists() else []


@pytest.mark.long
@each_agent
def test_saved_settings_lead_through_the_server_until_they_are_taken_back(case: Case, home: Path) -> None:
    folder = program_folder(case.client)
    nowhere = f"http://127.0.0.1:{NO_PROXY_PORT}"
    other = {"OPENAI_BASE_URL": f"{nowhere}/v1", "ANTHROPIC_BASE_URL": nowhere}
    environ = environment(home, folder, **KEYS, **other, **case.environment)
    with upstream_for(case) as upstream, serving(settings=upstream_urls(upstream)) as server:
        save = (
            "--save",
            "--yes",
            "--any-upstream",
            "--url",
            server.url,
        )  # the agent is set to another address
        run(foveal_command("wrap", case.client.program, *save), home, environ)
        assert server.url in (home / case.file).read_text("utf-8")
        assert "Turn 1 is done." in run([case.client.program, *case.arguments], home, environ)
        assert upstream.faults == []
        until(lambda: len(exchanges(server.output)) >= len(upstream.requests))
        assert set(exchanges(server.output)) == {200}
    run(foveal_command("unwrap", case.client.program), home, environ)
    assert not any(server.url in text for text in settings_texts(home / case.file))


def upstream_urls(upstream: AgentUpstream) -> dict[str, str]:
    return {"server.openai_url": upstream.openai, "server.anthropic_url": upstream.anthropic}


@pytest.mark.long
def test_the_address_in_the_settings_of_the_agent_becomes_the_upstream(home: Path) -> None:
    folder = program_folder(CLAUDE.client)
    with upstream_for(CLAUDE) as gateway:
        (home / ".claude").mkdir()
        own = {"env": {"ANTHROPIC_BASE_URL": gateway.anthropic}}
        (home / CLAUDE.file).write_text(json.dumps(own))
        environ = environment(home, folder, **KEYS, **CLAUDE.environment)
        command = foveal_command("wrap", "claude", "--", *CLAUDE.arguments, "--settings", '{"model": "opus"}')
        assert "Turn 1 is done." in run(command, home, environ)
        assert gateway.answered == 2
    assert len(exchanges((home / ".local/state/foveal/wrap/claude.log").read_text("utf-8"))) >= 2


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


def script_agent(home: Path, text: str, *, name: str = "claude") -> dict[str, str]:
    """Install a program with the name of an agent that is a shell script."""
    program = home / "bin" / name
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return environment(home, str(program.parent), **KEYS)


def test_the_exit_code_and_the_arguments_are_those_of_the_agent(home: Path, server: Server) -> None:
    environ = script_agent(home, 'for word in "$@"; do echo "<$word>"; done; exit 7')
    command = foveal_command("wrap", "claude", "--url", server.url, "--", "-p", "a b", "--", "--save")
    done = warm_start.run(command[1:], cwd=home, env=environ, encoding="utf-8")
    assert (done.returncode, done.stdout.splitlines()[-4:]) == (7, ["<-p>", "<a b>", "<-->", "<--save>"])


@pytest.mark.long
@pytest.mark.parametrize("sent", rest_in_soak([signal.SIGKILL, signal.SIGTERM]))
def test_the_server_ends_with_the_command_that_has_started_it(home: Path, sent: signal.Signals) -> None:
    environ = script_agent(home, 'echo "$ANTHROPIC_BASE_URL $$"; exec sleep 60')
    command = foveal_command("wrap", "claude")[1:]
    with warm_start.start(
        command, cwd=home, env=environ, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        url, agent = process.stdout.readline().split()
        assert ask(url, "/healthz").json["status"] == "ok"
        process.send_signal(sent)
        assert process.wait(60) == (128 + sent if sent == signal.SIGTERM else -sent)
        until(lambda: not answers(url))
        if sent == signal.SIGKILL:  # the agent itself goes on
            os.kill(int(agent), signal.SIGKILL)


def test_a_signal_for_the_command_ends_the_agent(home: Path, server: Server) -> None:
    environ = script_agent(home, 'echo "$$"; exec sleep 60')
    command = foveal_command("wrap", "claude", "--url", server.url)[1:]
    with warm_start.start(
        command, cwd=home, env=environ, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        agent = process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{agent}").exists()


@pytest.mark.long
@pytest.mark.parametrize("sent", rest_in_soak([signal.SIGTERM, signal.SIGHUP, signal.SIGINT]))
def test_a_signal_while_the_server_starts_ends_both_at_once(home: Path, sent: signal.Signals) -> None:
    environ = script_agent(home, "echo started")
    with warm_start.start(
        foveal_command("wrap", "claude")[1:],
        cwd=home,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        log = home / ".local/state/foveal/wrap/claude.log"
        assert process.stderr.readline() == f"foveal: starting a server for this run; its log is {log}\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text().split())
        (server,) = children.read_text().split()
        process.send_signal(sent)
        assert process.wait(60) == 128 + sent
        assert process.stdout.read() == ""
    assert not Path(f"/proc/{server}").exists()


def test_ctrl_c_is_for_the_agent(home: Path, server: Server) -> None:
    environ = script_agent(home, "trap 'exit 3' INT; echo ready; while :; do sleep 0.1; done")
    with Terminal("wrap", "claude", "--url", server.url, cwd=home, env=environ) as terminal:
        terminal.see("ready")
        terminal.type(CTRL_C)
        assert terminal.ended() == 3


def test_a_server_of_this_user_at_the_usual_port_is_used(home: Path, server: Server) -> None:
    environ = script_agent(home, 'echo "$ANTHROPIC_BASE_URL"') | {"FOVEAL_SERVER_PORT": port_of(server.url)}
    assert run(foveal_command("wrap", "claude"), home, environ) == f"{server.url}\n"


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_server_of_another_user_at_the_usual_port_gets_no_keys(home: Path) -> None:
    code = "import os, socket; os.setuid(65_534); s = socket.create_server(('127.0.0.1', 0)); "
    code += "print(s.getsockname()[1], flush=True); s.accept()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = other.stdout.readline().strip()
        environ = script_agent(home, 'echo "$ANTHROPIC_BASE_URL"') | {"FOVEAL_SERVER_PORT": port}
        url = run(foveal_command("wrap", "claude"), home, environ).strip()
        assert other.poll() is None  # nothing has connected
        other.kill()
    assert url.startswith("http://127.0.0.1:")
    assert port_of(url) != port


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


def answers(url: str) -> bool:
    try:
        return bool(ask(url, "/healthz").status)
    except OSError:
        return False


def test_options_before_the_arguments_of_the_agent(home: Path, server: Server) -> None:
    environ = script_agent(home, 'echo "$ANTHROPIC_BASE_URL"; shift 2; echo "$@"')
    command = foveal_command("wrap", "claude", "--url", server.url, "--", "exec", "hi", "--", "--save")
    assert run(command, home, environ) == f"{server.url}\nexec hi -- --save\n"


def test_a_missing_agent_is_named(home: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert main(["wrap", "codex"]) == 1
    assert "codex is not installed" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("is_real", rest_in_soak([False, True]))
def test_a_server_that_does_not_start_says_why(home: Path, *, is_real: bool) -> None:
    """`make test` has a server that says what the real one says, after two seconds of imports."""
    environ = script_agent(home, "echo started")
    command = ["-m", "foveal.cli", "wrap", "claude"]
    if is_real:
        (home / ".config/foveal").mkdir(parents=True)
        (home / ".config/foveal/foveal.toml").write_text("[server]\nfolder = '/proc/none'\n")
    else:
        server, program = home / "server", home / "program.py"
        server.write_text("#!/bin/sh\necho 'foveal: the folder /proc/none cannot be created' >&2\nexit 1\n")
        server.chmod(0o700)
        program.write_text(
            f"import runpy, sys\nsys.executable = {str(server)!r}\n"
            "runpy.run_module('foveal.cli', run_name='__main__', alter_sys=True)\n"
        )
        command = [str(program), "wrap", "claude"]
    done = warm_start.run(command, cwd=home, env=environ, encoding="utf-8")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the server did not start: the folder /proc/none cannot be created" in done.stderr


# ── Saving ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def command(home: Path, monkeypatch: Any, capsys: Any) -> Callable[..., tuple[int, str]]:
    for name in (
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "OPENAI_API_KEY",
        "FOVEAL_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    programs = home / "programs"
    programs.mkdir()
    for name in ("claude", "codex"):  # they are never reached
        (programs / name).write_text("#!/bin/sh\nexit 9\n")
        (programs / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)

    def run_command(*words: str) -> tuple[int, str]:
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run_command


def test_saving_shows_what_changes_without_secrets_and_asks(
    home: Path, server: Server, command: Any, monkeypatch: Any
) -> None:
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    key = "sk-ant-api03-" + "a1B2" * 20
    file.write_text(json.dumps({"env": {"ANTHROPIC_API_KEY": key}}, indent=2))
    before = file.read_bytes()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    code, shown = command("wrap", "claude", "--save", "--url", server.url)
    assert (code, file.read_bytes()) == (1, before)
    assert f'+    "ANTHROPIC_BASE_URL": "{server.url}",' in shown
    assert key not in shown
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert command("wrap", "claude", "--save", "--url", server.url)[0] == 0
    assert json.loads(file.read_bytes())["env"]["ANTHROPIC_API_KEY"] == key
    again = command("wrap", "claude", "--save", "--url", server.url)
    assert again == (0, f"Claude Code goes through {server.url} already: {file}\n")
    assert command("unwrap", "claude") == (0, f"{file} is as it was before\n")
    assert file.read_bytes() == before


def test_without_a_terminal_saving_needs_a_yes(
    home: Path, server: Server, command: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, shown = command("wrap", "codex", "--save", "--url", server.url)
    assert (code, "add --yes" in shown) == (1, True)
    assert not (home / ".codex").exists()


def test_settings_changed_since_are_named_when_ours_are_taken_back(
    home: Path, server: Server, command: Any
) -> None:
    command("wrap", "codex", "--save", "--yes", "--url", server.url)
    file = home / ".codex/config.toml"
    file.write_text(
        'model = "gpt-5"\n'
        + file.read_text().replace("model_context_window = 10000000", "model_context_window = 9")
    )
    code, shown = command("unwrap", "codex")
    assert code == 0
    assert "has changed since" in shown
    assert "model_context_window stays" in shown
    assert file.read_text() == 'model = "gpt-5"\nmodel_context_window = 9\n'
    assert command("unwrap", "codex") == (0, "Codex is not wrapped: there is nothing to take back\n")


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
def test_the_address_in_the_settings_of_a_project_counts(
    home: Path, server: Server, command: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / name).write_text('{"env": {"ANTHROPIC_BASE_URL": "https://gw.example.com"}}')
    monkeypatch.chdir(project)
    code, shown = command("wrap", "claude", "--url", server.url)
    assert code == 1
    assert "Claude Code is set to https://gw.example.com" in shown

    def start(_name: str, own_urls: dict[str, str], _url: str) -> None:
        raise foveal.FovealError(f"a new server forwards to {own_urls['ANTHROPIC_BASE_URL']}")

    monkeypatch.setattr(wrap, "_started", start)
    assert "a new server forwards to https://gw.example.com" in command("wrap", "claude")[1]


def test_a_server_with_another_upstream_is_refused_unless_the_user_says_so(
    home: Path, server: Server, command: Any
) -> None:
    (home / ".codex").mkdir()
    provider = '[model_providers.gw]\nbase_url = "https://gw.example.com/v1"\nenv_key = "GW_KEY"\n'
    own = f'model_provider = "gw"\n{provider}'
    (home / ".codex/config.toml").write_text(own)
    for words in (["--save", "--yes"], []):
        code, shown = command("wrap", "codex", *words, "--url", server.url)
        assert code == 1
        assert "server.openai_url=https://gw.example.com/v1" in shown
        assert f"the server at {server.url} forwards to https://api.openai.com/v1" in shown
    assert (home / ".codex/config.toml").read_text() == own
    code, shown = command("wrap", "codex", "--save", "--yes", "--any-upstream", "--url", server.url)
    assert code == 0
    assert "https://gw.example.com/v1 before; the server forwards to https://api.openai.com/v1" in shown
    assert (
        'env_key = "GW_KEY"'
        in (home / ".codex/config.toml").read_text().partition("[model_providers.foveal]")[2]
    )


def test_the_address_of_the_environment_counts_too(
    home: Path, server: Server, command: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://gw.example.com")
    code, shown = command("wrap", "claude", "--save", "--yes", "--url", server.url)
    assert (code, "forwards to https://api.anthropic.com" in shown) == (1, True)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    assert command("wrap", "claude", "--save", "--yes", "--url", server.url)[0] == 0


def test_a_missing_name_of_the_agent_is_asked_for(command: Any) -> None:
    code, shown = command("wrap")
    assert (code, "which agent? foveal wrap {claude|codex|opencode|aider}" in shown) == (1, True)


def test_an_address_without_a_server_is_refused(home: Path, command: Any) -> None:
    code, shown = command("wrap", "claude", "--save", "--yes", "--url", f"http://127.0.0.1:{NO_PROXY_PORT}")
    assert (code, "there is no Foveal server" in shown) == (1, True)
    assert not (home / ".claude").exists()


def test_a_chatgpt_login_of_codex_is_refused(home: Path, server: Server, command: Any) -> None:
    (home / ".codex").mkdir()
    (home / ".codex/auth.json").write_text(json.dumps({"OPENAI_API_KEY": None, "tokens": {"id_token": "x"}}))
    code, shown = command("wrap", "codex", "--save", "--yes", "--url", server.url)
    assert (code, "ChatGPT plan" in shown) == (1, True)
    (home / ".codex/auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-of-the-login"}))
    assert command("wrap", "codex", "--save", "--yes", "--url", server.url)[0] == 0
    assert "requires_openai_auth = true" in (home / ".codex/config.toml").read_text()


def test_a_server_with_tokens_gets_the_token_of_the_environment(
    home: Path, tmp_path: Path, command: Any, monkeypatch: Any
) -> None:
    folder = tmp_path / "server"
    assert main(["token", "create", "--folder", str(folder)]) == 0
    token = command("token", "create", "--folder", str(folder))[1].split()[0]
    with serving(folder=folder) as guarded:
        save = ("wrap", "claude", "--save", "--yes", "--url", guarded.url)
        code, shown = command(*save)
        assert (code, "needs a token" in shown) == (1, True)
        monkeypatch.setenv("FOVEAL_TOKEN", "fv_wrong")
        assert "does not accept the token" in command(*save)[1]
        monkeypatch.setenv("FOVEAL_TOKEN", token)
        (home / ".claude").mkdir()
        (home / ".claude/settings.json").write_text("{}")
        (home / ".claude/settings.json").chmod(0o644)
        code, shown = command(*save)
        assert (home / ".claude/settings.json").stat().st_mode & 0o777 == 0o600
        assert (code, token in shown) == (0, False)
        headers = json.loads((home / ".claude/settings.json").read_bytes())["env"]["ANTHROPIC_CUSTOM_HEADERS"]
        name, _, value = headers.partition(": ")
        assert guarded.ask("/api/sessions", headers={name: value}).status == 200


def test_aider_sends_the_token_in_place_of_its_key(
    home: Path, tmp_path: Path, command: Any, monkeypatch: Any
) -> None:
    folder = tmp_path / "server"
    token = command("token", "create", "--folder", str(folder))[1].split()[0]
    environ = script_agent(home, 'echo "$OPENAI_API_KEY $AIDER_ANTHROPIC_API_KEY"', name="aider")
    monkeypatch.setenv("FOVEAL_TOKEN", token)
    with serving(folder=folder) as guarded:
        started = foveal_command("wrap", "aider", "--url", guarded.url)
        assert run(started, home, {**environ, "FOVEAL_TOKEN": token}) == f"{token} {token}\n"
        code, shown = command("wrap", "aider", "--save", "--yes", "--url", guarded.url)
        assert (code, token in shown) == (0, False)
    assert f'openai-api-key: "{token}"' in (home / ".aider.conf.yml").read_text()
    assert command("unwrap", "aider")[0] == 0
    assert not (home / ".aider.conf.yml").exists()


@pytest.mark.parametrize("name", ["codex", "opencode"])
def test_the_token_of_an_agent_that_reads_variables_is_not_written(name: str, home: Path) -> None:
    server = WrappedServer("http://127.0.0.1:8790", "fv_secret")
    agent = AGENTS[name]
    written = agent.settings(server, lambda path: None, {"HOME": str(home)})
    assert not any("fv_secret" in value for value in written.values())
    assert any("FOVEAL_TOKEN" in value for value in written.values())
    started = agent.started(server, [], lambda path: None, {"HOME": str(home)})
    assert started.environment["FOVEAL_TOKEN"] == "fv_secret"
