"""Size limits of instructions: shares of the user and of the project, and cuts.

1. The files of the user have a share of the limit that files of a project cannot take.
2. Among the files of a project, general ones are cut before specific ones. A short file is shown whole: half of the
   limit is divided among the files, and one that fits into its part cannot lose it to a longer one.
3. `cut_line` names what is cut, for the start of the instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.config.instructions.rules import InstructionFile, ShownFile, _safe_path

USER_SHARE: Final = 0.75
"""Share of a limit that the user's own files can take, however long those of the project are."""
SHORT_FILES_SHARE: Final = 0.5
"""Share of a limit that is divided among the files, so that short ones are shown whole."""
MAX_CUT_FILES_NAMED: Final = 8
"""Files that the line about cut files names."""


def fit_by_owner(
    user: Sequence[InstructionFile], project: Sequence[InstructionFile], room: int
) -> list[ShownFile | None]:
    """Return what is shown of the user's files, then of the project's, within `room` bytes together."""
    needed = sum(_utf8_size(_heading(file)) + _utf8_size(file.text) for file in project)
    own = fit_files(user, max(int(room * USER_SHARE), room - needed))
    taken = sum(_utf8_size(file.content) for file in own if file is not None)
    return [*own, *fit_files(project, room - taken)]


def cut_line(files: Sequence[InstructionFile], shown: Sequence[ShownFile | None]) -> str:
    """Return a line that names the files that are cut or left out, with the lines shown of each; "" without any."""
    cut = [
        f"{_safe_path(file.path)} ({_lines_shown(file, part)})"
        for file, part in zip(files, shown, strict=True)
        if part is None or not part.whole
    ]
    if len(cut) > MAX_CUT_FILES_NAMED:
        cut = [*cut[:MAX_CUT_FILES_NAMED], f"and {len(cut) - MAX_CUT_FILES_NAMED:,} more"]
    return f"[foveal: instructions are cut: {'; '.join(cut)}]\n" if cut else ""


def _lines_shown(file: InstructionFile, part: ShownFile | None) -> str:
    total = len(_split_lines(file.text)) if part is None else part.total
    more = " or more" if file.unread else ""
    return f"{part.lines if part is not None else 0:,} of {total:,}{more} lines shown"


def fit_files(files: Sequence[InstructionFile], room: int) -> list[ShownFile | None]:
    """Return what is shown of each file within `room` bytes; the files are ordered from the least specific on.

    None for a file that has no room even for a notice."""
    shown: list[ShownFile | None] = []
    lines = [_split_lines(file.text) for file in files]
    part_of_each = int(room * SHORT_FILES_SHARE) // max(1, len(files))
    sizes = [_utf8_size(_heading(file)) + _utf8_size(file.text) for file in files]
    are_short = [size <= part_of_each and not file.unread for file, size in zip(files, sizes, strict=True)]
    kept = [
        size if is_short else _utf8_size(_notice(file, len(parts)))
        for file, parts, size, is_short in zip(files, lines, sizes, are_short, strict=True)
    ]
    full = False
    for file, is_short in zip(reversed(files), reversed(are_short), strict=True):
        own, parts = kept.pop(), lines.pop()
        # Leave room for the short files above it, and for the notices of the others.
        allowed = max(room - sum(kept), min(room, own))
        is_left_out = full and not is_short
        visible = _notice_only(file, parts, allowed) if is_left_out else _cut_file(file, parts, allowed)
        full = full or visible is None or not visible.whole
        room -= _utf8_size(visible.content) if visible is not None else 0
        shown.append(visible)
    return shown[::-1]


def _split_lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _cut_file(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    heading, total = _heading(file), len(lines)
    if not file.unread and _utf8_size(heading) + _utf8_size(file.text) <= room:
        return ShownFile(file.path, heading + file.text, total, total, whole=True)
    left = room - _utf8_size(heading) - _utf8_size(_notice(file, total))
    kept = 0
    while kept < total and (left := left - _utf8_size(lines[kept])) >= 0:
        kept += 1
    if not kept:
        return _notice_only(file, lines, room)
    content = f"{heading}{''.join(lines[:kept])}{_notice(file, total - kept)}"
    return ShownFile(file.path, content, kept, total, whole=False)


def _notice_only(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    notice = _notice(file, len(lines))
    return ShownFile(file.path, notice, 0, len(lines), whole=False) if _utf8_size(notice) <= room else None


def _heading(file: InstructionFile) -> str:
    path = _safe_path(file.path)
    match file.kind:
        case "user":
            return f"# Instructions of the user, for every project ({path})\n\n"
        case "preferences":
            return f"# What the user prefers, remembered from earlier work ({path})\n\n"
        case "project":
            folder = path.rpartition("/")[0] or "/"
            return f"# Instructions for {folder} ({path}); they go before those of folders above it\n\n"


def _notice(file: InstructionFile, lines: int) -> str:
    more = "more than " if file.unread else ""
    return f"[foveal: {more}{lines:,} lines of {_safe_path(file.path)} are not shown; read the file for the rest]"
