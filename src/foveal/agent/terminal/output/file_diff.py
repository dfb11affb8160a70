"""Changes of a file as a coloured diff."""

from __future__ import annotations

from difflib import unified_diff
from typing import Final

from foveal.agent.terminal.output.styled_text import Row, bold, diff_rows, dim, row
from foveal.agent.tools.text_edit import decode_for_reading, is_binary

MAX_COMPARED_CHARS: Final = 400_000
"""Most characters of two texts that are compared."""


def file_diff_rows(name: str, before: bytes | None, after: bytes | None) -> list[Row]:
    """Return the difference between two states of a file; None is a file that does not exist."""
    kind = "  new file" if before is None else "  deleted" if after is None else ""
    head = row(bold(f"  {name}"), dim(kind))
    if is_binary((before or b"")[:8_192]) or is_binary((after or b"")[:8_192]):
        return [head, row(dim(f"    {len(before or b''):,} bytes become {len(after or b''):,}; not a text"))]
    old, new = (decode_for_reading(data or b"")[0] for data in (before, after))
    if len(old) + len(new) > MAX_COMPARED_CHARS:
        return [
            head,
            row(dim(f"    {len(old):,} characters become {len(new):,}; too long to be compared here")),
        ]
    lines = list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]
    if not lines:
        return [head, row(dim("    only line endings or the encoding differ"))]
    return [head, *diff_rows("\n".join(lines))]
