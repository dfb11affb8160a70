"""Transcripts as Claude Code writes them."""

from __future__ import annotations

import json
from pathlib import Path


def claude_line(
    text: str,
    *,
    id: str,
    parent: str | None,
    role: str = "user",
    folder: str = "/home/me/proj",
    day: int = 1,
) -> str:
    entry = {
        "parentUuid": parent, "isSidechain": False, "cwd": folder, "sessionId": "c1", "uuid": id, "type": role,
        "timestamp": f"1970-01-{day + 1:02}T00:00:00Z", "message": {"role": role, "content": text, "id": f"m{id}"},
    }  # fmt: skip
    return json.dumps(entry) + "\n"


def write_claude(path: Path, *texts: str, folder: str = "/home/me/proj", day: int = 1) -> Path:
    """Write a session of Claude Code with messages of this day of 1970, in a file of today."""
    path.parent.mkdir(parents=True, exist_ok=True)
    roles = ("user", "assistant")
    lines = [
        claude_line(
            text,
            id=f"u{at}",
            parent=f"u{at - 1}" if at else None,
            role=roles[at % 2],
            folder=folder,
            day=day,
        )
        for at, text in enumerate(texts)
    ]
    path.write_text("".join(lines))
    return path
