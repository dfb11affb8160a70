"""Records the tools of six MCP servers: what `python -m bench tools` and the tests of deferred tools use.

    python tools/record_mcp_tools.py            install the servers into a temporary folder, and record their tools
    python tools/record_mcp_tools.py --folder DIR    use, or install, the servers in DIR

It needs Node.js and npm. No server gets a credential, and no tool is called: only `initialize` and `tools/list` are
sent. The file has the name and the version of each server, and of its tools the name, the description and the
schema of the arguments. Of the last server only as many tools are kept as make `TOOL_COUNT` in all.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

TOOL_COUNT: Final = 100
RESULT: Final = Path(__file__).parents[1] / "tests" / "data" / "mcp_tools.json.gz"
TIMEOUT_S: Final = 60
PROTOCOL: Final = "2025-06-18"


class Server(NamedTuple):
    """A server on npm, and the program that starts it."""

    name: str
    package: str
    version: str
    program: str
    arguments: tuple[str, ...] = ()


SERVERS: Final = (
    Server("github", "@modelcontextprotocol/server-github", "2025.4.8", "mcp-server-github"),
    Server("notion", "@notionhq/notion-mcp-server", "2.5.2", "notion-mcp-server"),
    Server(
        "filesystem", "@modelcontextprotocol/server-filesystem", "2026.8.31", "mcp-server-filesystem", (".",)
    ),
    Server("memory", "@modelcontextprotocol/server-memory", "2026.8.31", "mcp-server-memory"),
    Server(
        "thinking",
        "@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        "mcp-server-sequential-thinking",
    ),
    Server("devtools", "chrome-devtools-mcp", "1.11.0", "chrome-devtools-mcp"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--folder", type=Path, help="where the servers are installed; by default a temporary one"
    )
    folder: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        record(folder or Path(temporary))


def record(folder: Path) -> None:
    """Write the file with the tools of all servers."""
    packages = [f"{server.package}@{server.version}" for server in SERVERS]
    subprocess.run(["npm", "install", "--ignore-scripts", "--prefix", str(folder), *packages], check=True)
    recorded: list[dict[str, Any]] = []
    for server in SERVERS:
        room = TOOL_COUNT - sum(len(one["tools"]) for one in recorded)
        tools = list_tools(server, folder)
        print(f"{server.name}: {len(tools)} tools")
        recorded.append(
            {
                "server": server.name,
                "package": server.package,
                "version": server.version,
                "tools": [
                    {field: tool[field] for field in ("name", "description", "inputSchema") if field in tool}
                    for tool in tools[:room]
                ],
            }
        )
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    RESULT.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{sum(len(one['tools']) for one in recorded)} tools, {len(text):,} characters: {RESULT}")


def list_tools(server: Server, folder: Path) -> list[dict[str, Any]]:
    """Start a server, ask for its tools, and end it."""
    program = folder / "node_modules" / ".bin" / server.program
    process = subprocess.Popen(
        [str(program), *server.arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        client = {"name": "recorder", "version": "1"}
        start = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        ask(process, 1, "initialize", start)
        send(process, {"method": "notifications/initialized"})
        found: list[dict[str, Any]] = ask(process, 2, "tools/list", {})["tools"]
        return found
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def ask(process: subprocess.Popen[str], number: int, method: str, params: dict[str, Any]) -> Any:
    """Send a request and return the result of its answer."""
    send(process, {"id": number, "method": method, "params": params})
    assert process.stdout is not None
    for line in process.stdout:
        answer = json.loads(line) if line.startswith("{") else {}
        if answer.get("id") == number:
            return answer["result"]
    raise RuntimeError(f"the server ended without an answer to {method}")


def send(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


if __name__ == "__main__":
    main()
