"""The chat bots of `foveal serve`: health, metrics, and the question about a webhook."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from foveal.agent.tool import Toolbox
from foveal.cli.serve import chat_tools
from foveal.config import load
from foveal.errors import BadSetting
from foveal.server import Service
from foveal.server.gateways.gateway import GatewayHealth
from foveal.server.http.app import MAX_OWED_S, Health
from foveal.server.http.prometheus import GATEWAY_GAUGES, PrometheusMetrics
from foveal.server.http.shutdown import ShutdownState
from foveal.server.proxy.upstreams import Upstreams
from support.gated_provider import run
from support.serve_process import Server, environment_of, serving
from support.telegram_bot import USER
from support.telegram_stand_in import TOKEN, BotApi
from support.terminal import Terminal
from support.warm_commands import arguments, warm_commands

HOOK = "https://hooks.example.org/bot/secret"


def asked_through(address: str, *headers: tuple[bytes, bytes]) -> Request:
    scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "scheme": "http"}
    return Request(scope | {"client": (address, 1), "server": ("127.0.0.1", 8790), "headers": headers})


WELL = GatewayHealth(
    platform="telegram",
    status="listening",
    connected_since=1_000.0,
    last_update=None,
    owed=0,
    owed_oldest_at=None,
    given_up=0,
    refused=0,
    last_error="",
)


def gateway(**changes: Any) -> GatewayHealth:
    return GatewayHealth(**{name: getattr(WELL, name) for name in WELL.__struct_fields__} | changes)


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"status": "unreachable", "last_error": "Telegram cannot be reached"}, []),
        ({"status": "refused", "last_error": "Telegram refuses"}, ["Telegram refuses"]),
        ({"owed": 2, "owed_oldest_at": 2_000.0 - MAX_OWED_S}, []),
        (
            {"owed": 2, "owed_oldest_at": 1_999.0 - MAX_OWED_S},
            ["2 answers of the telegram bot could not be delivered yet"],
        ),
    ],
)
def test_a_bot_that_is_refused_or_owes_old_answers_makes_the_server_degraded(
    changes: dict[str, Any], problems: list[str], tmp_path: Path
) -> None:
    @run
    async def check() -> None:
        config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
        opening = Service.open(config, folder=tmp_path / "served", environment={}, clock=lambda: 2_000.0)
        async with opening as service:
            health = Health(service, ShutdownState(), lambda: [gateway(**changes)], Upstreams(service))
            response = await health(asked_through("8.8.8.8"))
            body = json.loads(bytes(response.body))
        assert (response.status_code, body["problems"]) == (200, problems)
        assert body["status"] == ("degraded" if problems else "ok")
        shown = body["gateways"]["telegram"]
        assert shown["connected_since"] == "1970-01-01T00:16:40+00:00"
        assert (shown["last_update"], shown["owed"]) == (None, changes.get("owed", 0))

    check()


def gauges(text: str) -> dict[str, float]:
    """Return the metrics of the bots, by name."""
    return {
        sample.name.removeprefix("foveal_gateway_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("foveal_gateway_")
    }


def test_metrics_tell_how_a_bot_is() -> None:
    metrics = PrometheusMetrics()
    assert gauges(metrics.text().decode()) == {}
    metrics.set_gateways(
        [gateway(last_update=1_500.0, owed=3, owed_oldest_at=1_900.0, given_up=1, refused=2)], now=2_000.0
    )
    found = gauges(metrics.text().decode())
    assert found == {
        "up": 1.0,
        "refused": 0.0,
        "connected_since_seconds": 1_000.0,
        "last_update_seconds": 1_500.0,
        "owed_answers": 3.0,
        "owed_oldest_seconds": 100.0,
        "given_up_answers": 1.0,
        "refused_answers": 2.0,
    }
    assert found.keys() == GATEWAY_GAUGES.keys()


@asynccontextmanager
async def server_with_bot(folder: Path, api: BotApi) -> AsyncIterator[Server]:
    running = serving(
        folder=folder / "served",
        settings={"telegram.allowed": [USER], "telegram.base_url": api.url},
        environment={"TELEGRAM_BOT_TOKEN": TOKEN},
    )
    server = await asyncio.to_thread(running.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def health_when(server: Server, condition: Callable[[Any], bool]) -> Any:
    """Return the health as soon as it meets a condition."""
    while not condition(body := (await asyncio.to_thread(server.ask, "/healthz")).json):
        await asyncio.sleep(0.05)
    return body


@run
async def test_the_server_reports_its_bot_and_a_refused_token(tmp_path: Path) -> None:
    async with BotApi() as api, server_with_bot(tmp_path, api) as server:
        api.hear("Hello.", user=USER)
        await api.said(1)
        body = await health_when(server, lambda body: body["gateways"]["telegram"]["owed"] == 0)
        shown = body["gateways"]["telegram"]
        assert (body["status"], shown["status"], shown["last_error"]) == ("ok", "listening", "")
        assert shown["last_update"] >= shown["connected_since"]
        async with api.outage("unauthorised"):
            refused = await health_when(server, lambda body: body["status"] == "degraded")
            assert refused["problems"] == ["Telegram does not accept TELEGRAM_BOT_TOKEN"]
            found = gauges((await asyncio.to_thread(server.ask, "/metrics")).body.decode())
            assert (found["up"], found["refused"]) == (0.0, 1.0)
        await health_when(server, lambda body: body["status"] == "ok")
        assert TOKEN not in server.output


@pytest.mark.parametrize(("answer", "is_deleted"), [("y", True), ("", False)])
def test_at_a_terminal_the_operator_is_asked_before_a_webhook_is_deleted(
    answer: str, is_deleted: bool, tmp_path: Path
) -> None:
    @run
    async def check() -> None:
        async with BotApi() as api:
            api.webhook = HOOK
            await asyncio.to_thread(ask_in_terminal, api)
            assert bool(api.webhook) is not is_deleted

    def ask_in_terminal(api: BotApi) -> None:
        environment = environment_of(
            tmp_path, TELEGRAM_BOT_TOKEN=TOKEN, FOVEAL_PROVIDER="support.serve_process:scripted"
        )
        settings = [f"--set=telegram.base_url={api.url}", "--set=tokenizer=estimate"]
        place = f"--folder={tmp_path / 'served'}"
        arguments = ("serve", "--port=0", place, *settings)
        with Terminal(*arguments, env=environment, cwd=tmp_path, columns=200) as terminal:
            terminal.see("webhook at hooks.example.org. Delete it? [y/N]", seconds=60)
            terminal.enter(answer)
            terminal.see('"event":"listening"', seconds=60)
            terminal.see("Telegram on, but no user" if is_deleted else "Telegram sends", seconds=60)
            assert "secret" not in terminal.text

    check()


MCP_SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")

@server.tool()
def add(a: int, b: int) -> str:
    "Add two numbers."
    return str(a + b)

server.run()
"""


@run
async def test_the_tools_of_a_bot_read_and_ask_but_do_not_write(tmp_path: Path) -> None:
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "a.txt").write_text("The gate is green.")
    (tmp_path / "server.py").write_text(MCP_SERVER)
    async with AsyncExitStack() as stack:
        warm = stack.enter_context(warm_commands())
        settings = {
            "telegram.tools": ["fetch", f"files:{tmp_path / 'handbook'}", "mcp:sums"],
            "mcp.sums.command": sys.executable,
            "mcp.sums.args": arguments(warm, tmp_path / "server.py"),
        }
        config = load(tmp_path, flags=settings, environ={}, user_folder=tmp_path / "no-config")
        tools = {tool.name: tool for tool in await chat_tools(config, "telegram", stack)}
        asks = {name: tool.needs_approval for name, tool in tools.items()}
        assert asks == {"fetch": True, "read": False, "list": False, "search": False, "sums__add": True}
        box = Toolbox(tools.values())
        assert "The gate is green." in str((await box.call("read", '{"path": "a.txt"}')).content)
        assert (await box.call("read", '{"path": "../server.py"}')).error
        assert (await box.call("sums__add", '{"a": 1, "b": 2}')).content == "3"
        assert await chat_tools(config, "discord", stack) == []


@pytest.mark.parametrize("entry", ["files:/no/such/folder", "mcp:unknown"])
@run
async def test_a_tool_that_does_not_exist_is_refused_at_the_start(tmp_path: Path, entry: str) -> None:
    config = load(tmp_path, flags={"telegram.tools": [entry]}, environ={}, user_folder=tmp_path / "no-config")
    async with AsyncExitStack() as stack:
        with pytest.raises(BadSetting, match=r"telegram\.tools"):
            await chat_tools(config, "telegram", stack)


@pytest.mark.parametrize(
    ("address", "headers", "is_told"),
    [
        ("127.0.0.1", [], True),
        ("127.0.0.1", [(b"host", b"localhost:8790")], True),
        ("127.0.0.1", [(b"host", b"foveal.example.com")], False),
        ("127.0.0.1", [(b"x-forwarded-for", b"8.8.8.8")], False),
        ("8.8.8.8", [], False),
    ],
)
def test_only_a_program_of_the_same_machine_is_told_the_upstreams(
    address: str, headers: list[tuple[bytes, bytes]], is_told: bool, tmp_path: Path
) -> None:
    @run
    async def check() -> None:
        config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
        async with Service.open(config, folder=tmp_path / "served", environment={}) as service:
            health = Health(service, ShutdownState(), list, Upstreams(service))
            response = await health(asked_through(address, *headers))
        assert ("upstreams" in json.loads(bytes(response.body))) is is_told

    check()
