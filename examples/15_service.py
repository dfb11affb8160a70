"""Uses the HTTP API of `foveal serve` with the standard library only; any language can do the same.

Set FOVEAL_URL to use a running server. Otherwise the example starts one in a temporary folder.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving() -> Generator[str]:
    """Yield the URL of a server."""
    if url := os.environ.get("FOVEAL_URL"):
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "foveal.cli", "serve", "--port", "0", "--folder", folder]
        server = subprocess.Popen(
            [*command, "--model", "openai/gpt-4.1", "--window", "6000"],
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        assert server.stderr is not None
        try:
            yield next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
        finally:
            server.terminate()
            server.communicate()


def ask(method: str, url: str, body: Any = None) -> Any:
    """Send one request and return the decoded response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read() or "null")


def turn(session: str, text: str) -> Iterator[tuple[str, Any]]:
    """Send a message and yield the events of the turn as they arrive."""
    data = json.dumps({"text": text}).encode()
    request = urllib.request.Request(f"{session}/turns", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as stream:
        name = ""
        for line in map(bytes.decode, stream):
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


with serving() as url:
    created = ask("POST", f"{url}/api/sessions", {"title": "An example", "system": "You are careful."})
    session = f"{url}/api/sessions/{created['id']}"
    print(f"a session with {created['model']}")

    for event, data in turn(session, "Which test fails?"):
        if event == "heard":
            print(f"stored as {data['handle']}")
        elif event == "outcome":
            print(f"{data['why']}: {data['text'][:60]}")

    for part in range(6):  # messages from another source: stored, not answered
        said = {"role": "user", "content": f"What does part {part} do?"}
        answered = {
            "role": "assistant",
            "content": f"Part {part} copies rows from one table to another. " * 30,
        }
        ask("POST", f"{session}/events", {"messages": [said, answered]})
    done = ask("POST", f"{session}/compact", {"focus": "which parts there are"})
    print(f"compacted from {done['before']:,} to {done['after']:,} tokens, as {done['handle']}")
    (first, *_) = ask("GET", f"{session}/search?q=part+3&limit=5")["hits"]
    print(f"found in {first['handle']}: {first['excerpt'][:40]}")
    print(f"undone: {ask('POST', f'{session}/undo', {})}")

    report = ask("GET", f"{session}/context")
    print(f"{report['used']:,} of {report['window']:,} tokens; the parts add up:", end=" ")
    print(sum(report["totals"].values()) == report["window"])
    ask("DELETE", session)
    print("sessions left:", [each["id"] for each in ask("GET", f"{url}/api/sessions")["sessions"]])
