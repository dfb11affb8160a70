"""Settings in files of other programs: JSON with comments, TOML and YAML.

1. `put` and `remove` change one setting. Comments, order, indentation and line ends of all others stay.
2. A setting is named by its path, and its value is given and returned as the file writes it.
3. Every change is checked by reading the result. A file that cannot be changed in this way raises `FovealError`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from foveal.errors import FovealError

SettingPath = tuple[str, ...]


class SettingsFormat(Protocol):
    """Reads and changes settings in the text of a file."""

    def find(self, text: str, path: SettingPath) -> str | None:
        """Return the value of a setting as the text writes it, None if it is not set."""
        ...

    def put(self, text: str, path: SettingPath, value: str) -> str:
        """Return the text with the setting; an empty text is an empty file."""
        ...

    def remove(self, text: str, path: SettingPath) -> str:
        """Return the text without the setting, and without the sections that are empty then."""
        ...


def format_of(name: str) -> SettingsFormat:
    """Return the format of a file by its name."""
    return SETTINGS_FORMATS[name.rpartition(".")[2]]


def _refuse(why: str) -> NoReturn:
    raise FovealError(f"the file cannot be changed safely: {why}")


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _with_last_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + _line_end(text)


def _changed(values: dict[str, Any], path: SettingPath, value: Any) -> dict[str, Any]:
    """Return settings with another value; None removes it, and the sections that are empty then."""
    key, *rest = path
    if rest:
        inner = values.get(key)
        value = _changed(inner if isinstance(inner, dict) else {}, tuple(rest), value) or None
    others = {name: old for name, old in values.items() if name != key}
    return others if value is None else {**others, key: value}


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────

_GAP: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/[ \t]*)?(?=\r?\n)")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_WORD: Final = re.compile(r"[\w.+-]+")
_MAX_DEPTH: Final = 100


class _Value(NamedTuple):
    """A value and its place in the text."""

    start: int
    end: int
    value: Any
    members: list[_Member]
    """Of an object."""

    def member(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


class _Member(NamedTuple):
    key: str
    start: int
    content: _Value
    comma: int | None
    """Where the comma after it is."""


class JsonSettings:
    """JSON, also with comments and with commas after the last value."""

    def values(self, text: str) -> dict[str, Any]:
        """Return all settings."""
        return _read_json(text).value  # type: ignore[no-any-return]

    def find(self, text: str, path: SettingPath) -> str | None:
        value = _walk(_read_json(text), path)[-1] if text.strip() else None
        return text[value.start : value.end] if value is not None else None

    def put(self, text: str, path: SettingPath, value: str) -> str:
        text = text if text.strip() else "{}" + (text or "\n")
        root = _read_json(text)
        found = _walk(root, path)
        if found[-1] is not None:
            changed = text[: found[-1].start] + value + text[found[-1].end :]
        else:
            depth = len(found) - 2  # the last one that exists is the object for the new member
            into = found[depth]
            assert into is not None
            if not isinstance(into.value, dict):
                _refuse(f"{'.'.join(path[:depth]) or 'it'} is not an object")
            changed = _insert(text, root, into, path[depth:], value)
        return _checked_json(changed, _changed(root.value, path, json.loads(value)))

    def remove(self, text: str, path: SettingPath) -> str:
        root = _read_json(text)
        found = _walk(root, path)
        if found[-1] is None:
            return text
        depth = len(path) - 1  # of the object from which a member goes
        while depth and len(_object(found[depth]).members) == 1:
            depth -= 1
        return _checked_json(
            _cut_member(text, _object(found[depth]), path[depth]), _changed(root.value, path, None)
        )


def _object(found: _Value | None) -> _Value:
    assert found is not None
    return found


def _checked_json(text: str, expected: Any) -> str:
    if _read_json(text).value != expected:
        _refuse("its form is unusual")
    return text


def _walk(root: _Value, path: SettingPath) -> list[_Value | None]:
    """Return the root and the values along the path; the first that does not exist is None, and the last."""
    found: list[_Value | None] = [root]
    for key in path:
        member = _object(found[-1]).member(key)
        found.append(member.content if member is not None else None)
        if member is None:
            break
    return found


def _insert(text: str, root: _Value, into: _Value, path: SettingPath, value: str) -> str:
    """Return the text with a new last member of an object, in the style of the object."""
    end_of_line = _line_end(text)
    unit = _indent_of(text, root.members[0].start) if root.members else "  "
    if into.members and "\n" not in text[into.start : into.members[0].start]:
        inside = f" {_nested(path, value)}"
        last = into.members[-1]
        return _behind_member(text, last, inside, is_same_line=True)
    outer = _line_indent(text, into.start)
    indent = _indent_of(text, into.members[0].start) if into.members else outer + (unit or "  ")
    inside = end_of_line + indent + _nested(path, value, indent, unit or "  ", end_of_line)
    if into.members:
        return _behind_member(text, into.members[-1], inside, is_same_line=False)
    closing = "" if "\n" in text[into.start : into.end] else end_of_line + outer
    return text[: into.start + 1] + inside + closing + text[into.start + 1 :]


def _behind_member(text: str, last: _Member, inside: str, *, is_same_line: bool) -> str:
    """Return the text with a member behind another one, and behind the comment in the line of that one."""
    end = last.content.end
    if last.comma is None:
        text = text[:end] + "," + text[end:]
    at = (end if last.comma is None else last.comma) + 1
    rest = None if is_same_line else _REST_OF_LINE.match(text, at)
    at = rest.end() if rest else at
    return text[:at] + inside + text[at:]


def _nested(path: SettingPath, value: str, indent: str = "", unit: str = "", end_of_line: str = "") -> str:
    """Return the source of a member; the objects of a longer path are written around the value."""
    key, *rest = path
    if not rest:
        return f"{json.dumps(key)}: {value}"
    inner = indent + unit
    written = _nested(tuple(rest), value, inner, unit, end_of_line)
    return f"{json.dumps(key)}: {{{end_of_line}{inner}{written}{end_of_line}{indent}}}"


def _cut_member(text: str, owner: _Value, key: str) -> str:
    member = owner.member(key)
    assert member is not None
    start, end = member.start, (member.content.end if member.comma is None else member.comma + 1)
    while start and text[start - 1] in " \t":
        start -= 1
    if text[:start].endswith("\n"):
        start -= 2 if text[:start].endswith("\r\n") else 1
    before = owner.members[owner.members.index(member) - 1] if member is not owner.members[0] else None
    kept = text[:start]
    if member.comma is None and before is not None and before.comma is not None:
        kept = text[: before.comma] + text[before.comma + 1 : start]
    if before is None and len(owner.members) == 1 and not text[end : owner.end - 1].strip():
        return text[: owner.start + 1] + text[owner.end - 1 :]  # nothing is left: {}
    return kept + text[end:]


def _indent_of(text: str, at: int) -> str:
    """Return the indentation of the line at a place, if only that is before it."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if not before.strip() else ""


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _read_json(text: str) -> _Value:
    start = _gap_end(text, 0)
    root = _read_value(text, start, 0)
    if not isinstance(root.value, dict) or _gap_end(text, root.end) != len(text):
        _refuse("it is not one JSON object")
    return root


def _gap_end(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match else at


def _read_value(text: str, at: int, depth: int) -> _Value:
    if depth > _MAX_DEPTH:
        _refuse("it is nested too deeply")
    opening = text[at : at + 1]
    if opening == "{":
        return _read_object(text, at, depth)
    if opening == "[":
        return _read_array(text, at, depth)
    match = (_STRING if opening == '"' else _WORD).match(text, at)
    try:
        return _Value(at, match.end(), json.loads(match[0]), []) if match else _not_json(text, at)
    except ValueError:
        _not_json(text, at)


def _not_json(text: str, at: int) -> NoReturn:
    _refuse(f"line {text.count(chr(10), 0, at) + 1} is not valid JSON")


def _read_object(text: str, start: int, depth: int) -> _Value:
    members: list[_Member] = []
    at = _gap_end(text, start + 1)
    while text[at : at + 1] != "}":
        key = _STRING.match(text, at)
        colon = _gap_end(text, key.end()) if key else at
        if key is None or text[colon : colon + 1] != ":" or (members and members[-1].comma is None):
            _not_json(text, at)
        content = _read_value(text, _gap_end(text, colon + 1), depth + 1)
        after = _gap_end(text, content.end)
        has_comma = text[after : after + 1] == ","
        members.append(_Member(json.loads(key[0]), at, content, after if has_comma else None))
        at = _gap_end(text, after + 1) if has_comma else after
    return _Value(start, at + 1, {member.key: member.content.value for member in members}, members)


def _read_array(text: str, start: int, depth: int) -> _Value:
    items: list[Any] = []
    at, has_comma = _gap_end(text, start + 1), True
    while text[at : at + 1] != "]":
        if not has_comma:
            _not_json(text, at)
        item = _read_value(text, at, depth + 1)
        items.append(item.value)
        at = _gap_end(text, item.end)
        has_comma = text[at : at + 1] == ","
        at = _gap_end(text, at + 1) if has_comma else at
    return _Value(start, at + 1, items, [])


# ── TOML ─────────────────────────────────────────────────────────────────────────────────────────────────


class TomlSettings:
    """TOML, with each setting in a line of its own below the header of its table."""

    def find(self, text: str, path: SettingPath) -> str | None:
        _read_toml(text)
        lines = text.splitlines(keepends=True)
        found = self._line(lines, path)
        if found is None:
            return None
        try:
            tomllib.loads(lines[found])
        except tomllib.TOMLDecodeError:
            _refuse(f"{'.'.join(path)} takes several lines")
        return lines[found].partition("=")[2].strip()

    def put(self, text: str, path: SettingPath, value: str) -> str:
        before, setting = _read_toml(text), f"{path[-1]} = {value}{_line_end(text)}"
        if self.find(text, path) is not None:
            lines = text.splitlines(keepends=True)
            lines[self._line(lines, path) or 0] = setting
            changed = "".join(lines)
        else:
            changed = self._added(text, path[:-1], setting)
        return _checked_toml(changed, _changed(before, path, tomllib.loads(f"v = {value}")["v"]))

    def remove(self, text: str, path: SettingPath) -> str:
        if self.find(text, path) is None:
            return text
        before, lines = _read_toml(text), text.splitlines(keepends=True)
        del lines[self._line(lines, path) or 0]
        start, end = self._table(lines, path[:-1]) or (0, 0)
        if start and not any(map(_is_statement, lines[start:end])):
            first = start - 2 if start > 1 and not lines[start - 2].strip() else start - 1
            del lines[first:start]
        return _checked_toml("".join(lines), _changed(before, path, None))

    def _added(self, text: str, table: SettingPath, setting: str) -> str:
        lines = _with_last_line_end(text).splitlines(keepends=True)
        region = self._table(lines, table)
        if region is None:
            end_of_line = _line_end(text)
            empty = [end_of_line] if lines and lines[-1].strip() else []
            return "".join([*lines, *empty, f"[{'.'.join(table)}]{end_of_line}", setting])
        start, end = region
        at = max((number + 1 for number in range(start, end) if _is_statement(lines[number])), default=start)
        return "".join([*lines[:at], setting, *lines[at:]])

    def _line(self, lines: list[str], path: SettingPath) -> int | None:
        region = self._table(lines, path[:-1])
        form = re.compile(rf"\s*(?:{re.escape(path[-1])}|\"{re.escape(path[-1])}\")\s*=")
        numbers = range(*region) if region else range(0)
        return next((n for n in numbers if form.match(lines[n]) and _begins_statement(lines, n)), None)

    def _table(self, lines: list[str], table: SettingPath) -> tuple[int, int] | None:
        """Return the lines below the header of a table; those of the empty path begin the file."""
        headers = [
            (number, name) for number, line in enumerate(lines) if (name := _header(lines, number, line))
        ]
        ends = [number for number, _ in headers] + [len(lines)]
        if not table:
            return 0, ends[0]
        places = [place for place, (_, name) in enumerate(headers) if name == table]
        return (ends[places[0]] + 1, ends[places[0] + 1]) if places else None


def _is_statement(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _header(lines: list[str], number: int, line: str) -> SettingPath:
    """Return the path of the table whose header a line is; empty if it is none."""
    if not line.lstrip().startswith("[") or not _begins_statement(lines, number):
        return ()
    try:
        return tuple(_only_path(tomllib.loads(line)))
    except tomllib.TOMLDecodeError:
        return ()


def _only_path(values: Any) -> Iterator[str]:
    if isinstance(values, list):
        yield "[]"  # a table of a list has a path that no setting has
    elif values:
        [(key, inner)] = values.items()
        yield key
        yield from _only_path(inner)


def _begins_statement(lines: list[str], number: int) -> bool:
    """Return whether a line is not inside of a text or list of several lines."""
    try:
        tomllib.loads("".join(lines[:number]))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        _refuse(f"it is not valid TOML ({problem})")


def _checked_toml(text: str, expected: dict[str, Any]) -> str:
    if _read_toml(text) != expected:
        _refuse("its form is unusual")
    return text


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────────────

_YAML_KEY: Final = re.compile(r"\w[\w-]*[ \t]*:(?:\s|$)")


class YamlSettings:
    """YAML, only the keys of the outermost mapping whose values are in the same line."""

    def find(self, text: str, path: SettingPath) -> str | None:
        lines = text.splitlines(keepends=True)
        number = self._line(lines, path)
        return lines[number].partition(":")[2].strip() if number is not None else None

    def put(self, text: str, path: SettingPath, value: str) -> str:
        lines = _with_last_line_end(text).splitlines(keepends=True)
        number = self._line(lines, path)
        setting = f"{path[0]}: {value}{_line_end(text)}"
        if number is None:
            return "".join([*lines, setting])
        return "".join([*lines[:number], setting, *lines[number + 1 :]])

    def remove(self, text: str, path: SettingPath) -> str:
        lines = text.splitlines(keepends=True)
        number = self._line(lines, path)
        return text if number is None else "".join([*lines[:number], *lines[number + 1 :]])

    def _line(self, lines: list[str], path: SettingPath) -> int | None:
        [key] = path
        outermost = [
            number for number, line in enumerate(lines) if line.strip() and line[0] not in " \t#\r\n-]}"
        ]
        odd = [n + 1 for n in outermost if not _YAML_KEY.match(lines[n])]
        first = min(outermost, default=0)
        documents = [n + 1 for n, line in enumerate(lines) if n > first and line.startswith(("---", "..."))]
        if odd or documents:
            _refuse(f"line {min(odd + documents)} is not a simple setting")
        number = next((n for n in outermost if re.match(rf"{re.escape(key)}[ \t]*:", lines[n])), None)
        after = next((line for line in lines[(number or 0) + 1 :] if _is_statement(line)), "")
        if number is not None and after[:1] in (" ", "\t", "-", "]", "}"):
            _refuse(f"{key} takes several lines")
        return number


SETTINGS_FORMATS: Final[dict[str, SettingsFormat]] = {
    "json": JsonSettings(),
    "jsonc": JsonSettings(),
    "toml": TomlSettings(),
    "yml": YamlSettings(),
}
"""By the end of a file's name."""
