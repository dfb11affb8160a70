"""The shell commands of the server's pages run as they stand, against a server with a scripted model.

1. All `sh` blocks of a page are one script, which stops at the first command that fails. Addresses, tokens and
   folders of the page are replaced by those of the test.
2. `foveal serve` starts a server, waits until it listens, and stops it. `sudo`, `podman` and `pip` do nothing, so
   that what they would run is only parsed. `curl` fails for a status from 400 on.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import yaml

from support.doc_pages import code_blocks, page_text
from support.paths import ROOT
from support.postgres_server import database_url, drop_database, server_url, why_not
from support.serve_process import Server, environment_of, serving, until
from support.warm_commands import command, warm_commands

SHELL, CURL = shutil.which("bash"), shutil.which("curl")
pytestmark = pytest.mark.skipif(not SHELL or not CURL, reason="needs bash and curl")
COMMANDS = {
    "curl": f'exec {CURL} -sS --fail-with-body "$@"',
    "python3": f'exec {sys.executable} "$@"',
    "pip": "exit 0",
    "sudo": "exit 0",
    "podman": "exit 0",
}


def blocks(page: str, language: str) -> list[str]:
    return code_blocks(page_text(page), language)


def run_script(home: Path, script: str, **environment: str) -> str:
    """Run a script of the page's commands; return its output."""
    commands = home / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    variables = environment_of(home, FOVEAL_PROVIDER="support.serve_process:scripted", **environment)
    variables["PATH"] = f"{commands}:{variables['PATH']}"
    with warm_commands() as address:
        foveal = f'[ "$1" = serve ] && exec {command(address, "support.serve_once")} "$@"\n'
        foveal += f'exec {command(address, "foveal.cli")} "$@"'
        for name, body in {**COMMANDS, "foveal": foveal}.items():
            (commands / name).write_text(f"#!{SHELL}\n{body}\n")
            (commands / name).chmod(0o700)
        done = subprocess.run(
            [str(SHELL), "-euxo", "pipefail", "-c", script],
            cwd=home, env=variables, capture_output=True, encoding="utf-8", timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def data_folder(home: Path) -> Path:
    """Return the default data folder; its parent exists."""
    folder = home / ".local/share/foveal/server"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def test_commands_of_server(tmp_path: Path) -> None:
    token = run_script(tmp_path, "foveal token create").strip()
    with serving(folder=data_folder(tmp_path)) as server:
        script = "\n".join(blocks("service/index", "sh")).replace("http://127.0.0.1:8790", server.url)
        script = script.replace("fv_…", token).replace(
            "3f2a9c01", "$(foveal token list | grep -m1 alice | cut -c1-8)"
        )
        output = run_script(tmp_path, script)
    assert "alice's laptop" in output
    assert json.loads(output.splitlines()[-1]) == {"sessions": [], "next": None}


def test_commands_of_deletion_leave_no_byte_of_the_text(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    with serving(folder=folder) as server:
        script = "\n".join(blocks("library/delete-data", "sh")).replace("http://127.0.0.1:8790", server.url)
        before, _, after = script.partition("curl -X DELETE")
        assert "tulips" in run_script(tmp_path, before)
        output = run_script(tmp_path, f"curl -X DELETE{after}")
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert '{"sessions":["monday"],"kept":[]}' in output
    assert "erase" in output
    assert [path for path, content in files.items() if b"tulips" in content] == []


def test_commands_of_administration(tmp_path: Path) -> None:
    output = run_script(tmp_path, "\n".join(blocks("service/administration", "sh")))
    assert len(re.findall("^fv_", output, re.MULTILINE)) == 2
    assert "waiting  0 messages" in output
    rows = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert rows == []  # those of tenant alice


def test_commands_of_drop_in(tmp_path: Path) -> None:
    run_script(tmp_path, "\n".join(blocks("service/drop-in", "sh")))


def test_commands_of_schedules(tmp_path: Path) -> None:
    with serving(folder=data_folder(tmp_path)) as server:
        script = "\n".join(blocks("service/schedules", "sh")).replace("localhost:8790", server.url)
        assert '"cron":"0 18 * * *"' in run_script(tmp_path, script)


LONG_SESSION = json.dumps(
    {
        "messages": [
            {"role": role, "content": f"{n} " * 400} for n in range(20) for role in ("user", "assistant")
        ]
    }
)
THE_TURN = '$(curl -D - -o /dev/null $U/demo/turns -d \'{"text": "And red?", "key": "m2", "stream": false}\''
THE_TURN += " -H 'Content-Type: application/json' | sed -n 's/\\r$//; s/^x-foveal-turn: //p')"


def test_commands_of_api(tmp_path: Path) -> None:
    (tmp_path / "long.json").write_text(LONG_SESSION)
    with serving(folder=data_folder(tmp_path), settings={"agents.reviewer.window": 64_000}) as server:
        first, *others = blocks("service/http-api", "sh")
        longer = 'curl $U/demo/events -d @long.json -H "Content-Type: application/json"\n'
        script = "\n".join([first, longer, *others]).replace("http://127.0.0.1:8790", server.url)
        output = run_script(tmp_path, script.replace("TURN ", f"{THE_TURN} ", 1))
        assert server.ask("/api/sessions/other").status == 200
        assert server.ask("/api/sessions/demo").status == 404
    assert '"text":"You said: And red?"' in output


# ── Deployment ───────────────────────────────────────────────────────────────────────────────────────────


def test_commands_of_deploy_for_one_machine(tmp_path: Path) -> None:
    folder, copy = tmp_path / "server", tmp_path / "copy"
    page = (ROOT / "docs/service/deploy.md").read_text(encoding="utf-8").partition("\n## Containers")[0]
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    script = script.replace("/var/lib/foveal/server", str(folder)).replace("/var/backups/foveal", str(copy))
    with serving(folder=folder) as server:
        server.ask("/api/sessions", body={"id": "demo"})
        server.ask("/api/sessions/demo/turns", body={"text": "Hello.", "stream": False})
        before = server.ask("/api/sessions/demo/events").json
        run_script(tmp_path, script.replace("http://127.0.0.1:8790", server.url))
    (day,) = copy.iterdir()
    assert sorted(file.name for file in day.rglob("*.db")) == ["default.db", "service.db"]
    assert [file for file in day.rglob("*") if file.stat().st_mode & 0o077] == []
    with serving(folder=day) as server:
        assert server.ask("/api/sessions/demo/events").json == before
        turn = server.ask("/api/sessions/demo/turns", body={"text": "And now?", "stream": False})
        assert turn.json["outcome"]["text"] == "You said: And now?"


def test_commands_of_deploy_for_containers(tmp_path: Path) -> None:
    page = (ROOT / "docs/service/deploy.md").read_text(encoding="utf-8").partition("\n## Containers")[2]
    page = page.partition("\n## ")[0]
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    (tmp_path / "deploy").mkdir()
    (tmp_path / "openai_api_key").write_text("sk-mine\n")
    run_script(tmp_path, script)
    folder = tmp_path / "deploy/secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text("utf-8"))
    assert sorted(file.name for file in folder.iterdir()) == sorted(compose["secrets"])
    passwords = [(folder / name).read_text() for name in ("owner_password", "server_password")]
    assert passwords[0] != passwords[1]
    assert min(map(len, passwords)) > 40


def test_a_message_whose_answer_ends_between_the_copies_is_answered_once(tmp_path: Path) -> None:
    folder, copy, gate = tmp_path / "server", tmp_path / "copy", tmp_path / "gate"
    (copy / "tenants").mkdir(parents=True)
    with serving(folder=folder, environment={"GATE": str(gate)}) as server, ThreadPoolExecutor(1) as pool:
        server.ask("/api/sessions", body={"id": "demo"})
        turn = pool.submit(server.ask, "/api/sessions/demo/turns", body={"text": "hold on", "stream": False})
        until(lambda: "user_said" in kinds_of_events(server))
        vacuum_into(folder / "service.db", copy / "service.db")
        gate.touch()
        assert turn.result().status == 200
        vacuum_into(folder / "tenants/default.db", copy / "tenants/default.db")
    with serving(folder=copy) as server:
        until(lambda: server.ask("/healthz").json["inbox"] == 0)
        kinds = kinds_of_events(server)
    assert (kinds.count("user_said"), kinds.count("model_said")) == (1, 1)


def kinds_of_events(server: Server) -> list[str]:
    return [event["kind"] for event in server.ask("/api/sessions/demo/events").json["events"]]


def vacuum_into(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", [str(target)])


def test_commands_of_deploy_for_several_machines(tmp_path: Path) -> None:
    if problem := why_not():
        pytest.skip(problem)
    page = (ROOT / "docs/service/deploy.md").read_text(encoding="utf-8").partition("\n## Several machines")[2]
    setup, move = (
        re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
        for part in page.split("\n## Moving to PostgreSQL")
    )
    (statements,) = blocks("service/deploy", "sql")
    name, folder = f"t{uuid4().hex[:12]}", tmp_path / "server"
    words = {"DATABASE foveal": f"DATABASE {name}", "foveal_owner": f"{name}_o", "foveal_server": f"{name}_s"}
    urls = {user: database_url(server_url(), name, user=user) for user in (f"{name}_o", f"{name}_s")}
    words |= {f"postgresql://{user}@db.example.com/foveal": f"'{url}'" for user, url in urls.items()}
    words |= {"0.0.0.0": "127.0.0.1", "/var/lib/foveal/server": str(folder)}
    try:
        with psycopg.connect(server_url(), autocommit=True) as connection:
            for statement in replaced(statements, words).split(";")[:-1]:
                connection.execute(statement.encode())
        output = run_script(tmp_path, replaced("\n".join(setup[:-1]), words))
        assert f"{name}_s may read and write the tables" in output
        with serving(folder=folder) as server:
            server.ask("/api/sessions", body={"id": "demo"})
        run_script(tmp_path, replaced("\n".join(move), words))
        with serving(environment={"FOVEAL_DATABASE": urls[f"{name}_s"]}) as server:
            restart = setup[-1].replace("http://127.0.0.1:8790", server.url)
            assert json.loads(run_script(tmp_path, restart))["status"] == "ok"
            token = run_script(tmp_path, "foveal token create", FOVEAL_DATABASE=urls[f"{name}_s"]).strip()
            assert server.ask("/api/sessions/demo", token=token).status == 200
    finally:
        drop_database(database_url(server_url(), name))
        with psycopg.connect(server_url(), autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {name}_o, {name}_s".encode())


def test_the_library_opens_a_database(postgres_url: str) -> None:
    (block,) = blocks("library/sessions", "py")
    code = block.replace("postgresql://user@host/database", postgres_url)
    compiled = compile(code, "sessions", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(compiled, {}))  # noqa: S307
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT tenant, id FROM foveal.session").fetchall() == [("default", "demo")]


def replaced(text: str, words: dict[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text
