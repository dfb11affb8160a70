"""The files in `deploy`: their steps run here, and the image is built where a builder and its base image are."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest
import yaml

from foveal.cli.__main__ import main, read_secret_files
from foveal.config import find_key
from foveal.errors import BadSetting
from support.paths import ROOT
from support.serve_process import serving, until

DEPLOY: Final = ROOT / "deploy"
UNIT: Final = DEPLOY / "foveal.service"
MAX_EXPOSURE: Final = 20
"""Of 100, as `systemd-analyze security` counts it."""


# ── The image ────────────────────────────────────────────────────────────────────────────────────────────


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each with its text in one line."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(word, rest) for word, rest in pairs]


def given(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def healthcheck(url: str) -> list[str]:
    (text,) = given("HEALTHCHECK")
    program, *rest = json.loads(text.partition("CMD ")[2])
    assert program == "python"
    return [sys.executable, *(word.replace("http://127.0.0.1:8790", url) for word in rest)]


def test_the_health_check_of_the_image_follows_the_server() -> None:
    environ = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
    with serving() as server:
        command = healthcheck(server.url)
        assert server.url in command[-1]
        assert subprocess.run(command, env=environ, timeout=60, check=False).returncode == 0
    done = subprocess.run(command, env=environ, timeout=60, capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.soak
def test_the_first_stage_of_the_image_makes_a_wheel_of_the_copied_files(tmp_path: Path) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for text in given("COPY") if "--from" not in text for name in text.split()[:-1]]
    assert sorted(copied) == sorted(kept)
    source, wheels, installed = tmp_path / "source", tmp_path / "wheels", tmp_path / "venv"
    source.mkdir()
    for name in copied:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    steps = given("RUN")[0].replace("/opt/foveal", str(installed)).replace("/wheels", str(wheels)).split("&&")
    script = "&&".join(steps[:2]).replace("python -m venv", f"{sys.executable} -m venv")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=source,
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("hatchling cannot be installed: is its registry reachable?")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("*.whl")
    assert "foveal/cli/wrap/coding_agents.py" in ZipFile(wheel).namelist()


def test_the_image_installs_extras_that_exist_and_runs_without_root() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"foveal\[([\w,]+)\]", " ".join(given("RUN")))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {"server", "postgres"} <= set(extras.split(","))
    (user,) = given("USER")
    assert user.isdecimal()
    assert f"--uid {user} " in " ".join(given("RUN"))
    assert int(user) > 0


def test_what_the_image_starts_is_a_command_with_settings_that_exist() -> None:
    (entry,), (words,) = given("ENTRYPOINT"), given("CMD")
    assert [*json.loads(entry), *json.loads(words)] == ["foveal", "serve"]
    variables = dict(word.split("=", 1) for text in given("ENV") for word in shlex.split(text))
    settings = [name for name in variables if name.startswith("FOVEAL_")]
    assert [name for name in settings if find_key(tuple(name.lower().split("_")[1:])) is None] == []
    assert variables["HOME"] == given("VOLUME")[0]
    assert given("EXPOSE") == [str(find_key(("server", "port")).default)]  # type: ignore[union-attr]


def builder(base: str) -> str:
    """Return the program that builds images; skips the test if none can, or does not have the base image."""
    if not os.environ.get("FOVEAL_SOAK"):
        pytest.skip("the image is built with FOVEAL_SOAK=1 only: this takes minutes")
    reasons = ["neither podman nor docker is installed"]
    for program in ("podman", "docker"):
        if shutil.which(program) is None:
            continue
        if not succeeds(program, "info"):
            reasons.append(f"{program} is installed but does not run here")
        elif not succeeds(program, "image", "inspect", base):
            reasons.append(f"{program} does not have {base}, and no registry is asked (FOVEAL_BASE_IMAGE)")
        elif not succeeds(program, "run", "--rm", base, "true"):
            reasons.append(f"{program} cannot run a container here")
        elif not succeeds(program, "build", "-q", "-", stdin=f"FROM {base}\nRUN true\n"):
            reasons.append(f"{program} cannot run the steps of a build here")
        else:
            return program
    pytest.skip("; ".join(reasons[1:] or reasons))


def succeeds(*command: str, stdin: str = "") -> bool:
    try:
        return (
            subprocess.run(
                command, input=stdin.encode(), capture_output=True, timeout=60, check=False
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.long
def test_the_image_serves_from_a_read_only_root_until_it_is_stopped() -> None:
    (default,) = (text.partition("=")[2] for text in given("ARG"))
    base = os.environ.get("FOVEAL_BASE_IMAGE", default)
    program, name = builder(base), f"foveal-test-{os.getpid()}"
    faulthandler.cancel_dump_traceback_later()  # a build takes longer than pytest lets a test hang
    build = [
        program,
        "build",
        "--build-arg",
        f"BASE={base}",
        "-f",
        DEPLOY / "Containerfile",
        "-t",
        name,
        ROOT,
    ]
    subprocess.run(build, check=True, timeout=1_200)
    volume = f"{name}:/var/lib/foveal"
    try:
        hardened = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "-v", volume]
        subprocess.run([program, "run", "--rm", *hardened, name, "token", "create"], check=True, timeout=60)
        subprocess.run([program, "run", "-d", "--name", name, *hardened, name], check=True, timeout=60)
        (text,) = given("HEALTHCHECK")
        check = [program, "exec", name, *json.loads(text.partition("CMD ")[2])]
        until(lambda: subprocess.run(check, timeout=60, check=False).returncode == 0)
        subprocess.run([program, "stop", name], check=True, timeout=60)
        code = subprocess.run(
            [program, "inspect", "-f", "{{.State.ExitCode}}", name],
            check=True,
            capture_output=True,
            text=True,
        )
        assert code.stdout.strip() == "0"
    finally:
        for command in (["rm", "-f", name], ["volume", "rm", name], ["image", "rm", name]):
            subprocess.run([program, *command], check=False, timeout=60)


# ── Compose ──────────────────────────────────────────────────────────────────────────────────────────────


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))  # type: ignore[no-any-return]


def test_the_compose_file_refers_to_what_exists() -> None:
    file = compose()
    services = file["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert set(service.get("secrets", [])) <= set(file["secrets"])
        paths = [
            value for value in service.get("environment", {}).values() if value.startswith("/run/secrets/")
        ]
        assert {path.removeprefix("/run/secrets/") for path in paths} <= set(service.get("secrets", []))
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in file["volumes"]
    build = services["migrate"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert services["migrate"]["image"] == services["server"]["image"]


def test_the_servers_of_the_compose_file_are_hardened_and_stop_in_time() -> None:
    services = compose()["services"]
    for name in ("migrate", "server"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    server = services["server"]
    (grace,) = (word.partition("=")[2] for word in server["command"] if word.startswith("server.grace="))
    assert int(grace) < int(server["stop_grace_period"].removesuffix("s"))
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])


@pytest.mark.parametrize(
    "command",
    [["docker", "compose"], ["docker-compose"], ["podman-compose"]],
    ids=lambda words: " ".join(words),
)
def test_a_compose_program_accepts_the_file(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    known = subprocess.run([*command, "version"], capture_output=True, timeout=60, check=False)
    if known.returncode:
        pytest.skip(f"{' '.join(command)} does not run here")
    checked = [*command, "-f", str(DEPLOY / "compose.yaml"), "config"]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_role_of_the_servers_is_created_with_its_password(tmp_path: Path) -> None:
    """psql is replaced by a program that prints what it was given."""
    psql = tmp_path / "psql"
    psql.write_text('#!/bin/sh\necho "$@"\ncat\n')
    psql.chmod(0o700)
    (tmp_path / "server_password").write_text("it's secret\n")
    script = (DEPLOY / "database-roles.sh").read_text("utf-8").replace("/run/secrets", str(tmp_path))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POSTGRES_USER": "owner", "POSTGRES_DB": "foveal"}
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert "-v password=it's secret" in done.stdout
    (grant,) = (word for word in compose()["services"]["migrate"]["command"] if word == "foveal_server")
    assert f"CREATE ROLE {grant} LOGIN PASSWORD :'password';" in done.stdout


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / "foveal.service"
    file.write_text(UNIT.read_text("utf-8").replace("/opt/foveal/bin/foveal", "/bin/true"))
    return file


def test_the_systemd_unit_is_valid(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    if "Failed to" in done.stderr and "bus" in done.stderr:
        pytest.skip("systemd-analyze does not run here")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_systemd_unit_is_hardened(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "nrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot check a file")
    assert done.returncode == 0, done.stdout[-200:]


def test_the_grace_of_the_unit_ends_before_systemd_kills_the_server() -> None:
    text = UNIT.read_text("utf-8")
    (grace,) = re.findall(r"server\.grace=(\d+)", text)
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(grace) < int(timeout)


@contextmanager
def notify_socket(path: str) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(path)
        listening.settimeout(60)
        yield listening


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_server_tells_systemd_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, is_abstract: bool
) -> None:
    path = f"\0foveal-test-{os.getpid()}-{time.monotonic_ns()}" if is_abstract else str(tmp_path / "notify")
    with (
        notify_socket(path) as listening,
        serving(environment={"NOTIFY_SOCKET": path.replace("\0", "@")}) as server,
    ):
        assert listening.recv(100) == b"READY=1"
        assert server.ask("/healthz").status == 200
        assert server.stop() == 0
        assert listening.recv(100) == b"STOPPING=1"


# ── Secrets in files ─────────────────────────────────────────────────────────────────────────────────────


def test_a_key_can_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-of-the-file\n")
    path = str(tmp_path / "key")
    environ = {"OPENAI_API_KEY_FILE": path, "PGPASSWORD_FILE": path, "ANTHROPIC_API_KEY_FILE": ""}
    environ |= {"TELEGRAM_BOT_TOKEN": "own", "TELEGRAM_BOT_TOKEN_FILE": path, "OTHER_TOKEN_FILE": path}
    before = dict(environ)
    read_secret_files(environ)
    assert environ == before | {"OPENAI_API_KEY": "sk-of-the-file", "PGPASSWORD": "sk-of-the-file"}


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(BadSetting, match="ANTHROPIC_API_KEY_FILE"):
        read_secret_files({"ANTHROPIC_API_KEY_FILE": missing})
    monkeypatch.setenv("OPENAI_API_KEY_FILE", missing)
    assert main(["doctor"]) == 1
    assert missing in capsys.readouterr().err
