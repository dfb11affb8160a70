"""Settings in files of other programs are changed without touching anything else."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foveal.cli.wrap.settings_text import SETTINGS_FORMATS, SettingPath
from foveal.errors import FovealError

JSON, TOML, YAML = SETTINGS_FORMATS["json"], SETTINGS_FORMATS["toml"], SETTINGS_FORMATS["yml"]
ENV = ("env", "ANTHROPIC_BASE_URL")
URL = '"http://127.0.0.1:8790"'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "env": {\n    "ANTHROPIC_BASE_URL": @\n  }\n}\n'),
        ("{}", '{\n  "env": {\n    "ANTHROPIC_BASE_URL": @\n  }\n}'),
        (
            '{\n    "model": "opus"\n}\n',
            '{\n    "model": "opus",\n    "env": {\n        "ANTHROPIC_BASE_URL": @\n    }\n}\n',
        ),
        (
            '{\r\n\t"model": "opus"\r\n}\r\n',
            '{\r\n\t"model": "opus",\r\n\t"env": {\r\n\t\t"ANTHROPIC_BASE_URL": @\r\n\t}\r\n}\r\n',
        ),
        ('{"env": {"A": "1"}}', '{"env": {"A": "1", "ANTHROPIC_BASE_URL": @}}'),
        (
            '{\n  "env": {\n    "A": "1" // mine\n  },\n}\n',
            '{\n  "env": {\n    "A": "1", // mine\n    "ANTHROPIC_BASE_URL": @\n  },\n}\n',
        ),
        (
            '{\n  "env": {\n    "A": "1", /* mine */\n    // the end\n  }\n}\n',
            '{\n  "env": {\n    "A": "1", /* mine */\n    "ANTHROPIC_BASE_URL": @\n    // the end\n  }\n}\n',
        ),
        (
            '{"env": {"ANTHROPIC_BASE_URL": "https://other" /* was */}, "x": [1, 2]}',
            '{"env": {"ANTHROPIC_BASE_URL": @ /* was */}, "x": [1, 2]}',
        ),
    ],
)
def test_a_setting_of_a_json_file_is_added_in_the_style_of_the_file(before: str, after: str) -> None:
    assert JSON.put(before, ENV, URL) == after.replace("@", URL)
    assert JSON.find(JSON.put(before, ENV, URL), ENV) == URL


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "env": {\n    "ANTHROPIC_BASE_URL": @\n  }\n}\n', "{}\n"),
        ('{\n  "a": 1,\n  "env": {\n    "ANTHROPIC_BASE_URL": @\n  }\n}\n', '{\n  "a": 1\n}\n'),
        ('{\n  "env": {\n    "ANTHROPIC_BASE_URL": @\n  },\n  "a": 1\n}\n', '{\n  "a": 1\n}\n'),
        (
            '{"env": {"A": "1", "ANTHROPIC_BASE_URL": @, "B": "2"}}',
            '{"env": {"A": "1", "B": "2"}}',
        ),
        (
            '{\r\n  "env": {\r\n    "ANTHROPIC_BASE_URL": @,\r\n    "B": "2" // mine\r\n  }\r\n}\r\n',
            '{\r\n  "env": {\r\n    "B": "2" // mine\r\n  }\r\n}\r\n',
        ),
        ('{"env": {"A": "1"}}', '{"env": {"A": "1"}}'),
    ],
)
def test_a_setting_of_a_json_file_is_removed_with_its_line_and_comma(before: str, after: str) -> None:
    assert JSON.remove(before.replace("@", URL), ENV) == after


names = st.text('ab"\\/*,{} ', min_size=1, max_size=4)
objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\/*,{}[]', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(names, objects, max_size=4), st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_adding_and_removing_leaves_the_other_settings_of_any_json_file(
    values: dict[str, Any], indent: Any, has_windows_lines: bool
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    text = text.replace("\n", "\r\n") if has_windows_lines else text
    with_it = JSON.put(text, ENV, URL)
    assert json.loads(with_it) == {**values, "env": {ENV[1]: json.loads(URL)}}
    assert json.loads(JSON.remove(with_it, ENV)) == values
    if "\r\n" in text:
        assert "\n" not in with_it.replace("\r\n", "")


CODEX = """\
# mine
model = "gpt-5" # the best
notify = [
  "model_provider = 1",
  "[model_providers.foveal]",
]

[tools]
web_search = true
"""


def test_a_setting_of_a_toml_file_is_added_to_its_table() -> None:
    with_top = TOML.put(CODEX, ("model_provider",), '"foveal"')
    assert with_top == CODEX.replace("]\n\n[tools]", ']\nmodel_provider = "foveal"\n\n[tools]')
    table = ("model_providers", "foveal")
    with_table = TOML.put(TOML.put(with_top, (*table, "name"), '"Foveal"'), (*table, "base_url"), URL)
    assert with_table == with_top + f'\n[model_providers.foveal]\nname = "Foveal"\nbase_url = {URL}\n'
    without = with_table
    for path in (("model_provider",), (*table, "name"), (*table, "base_url")):
        without = TOML.remove(without, path)
    assert without == CODEX


def test_a_setting_of_a_toml_file_is_replaced_in_its_line_and_put_back_with_its_comment() -> None:
    old = TOML.find(CODEX, ("model",))
    assert old == '"gpt-5" # the best'
    changed = TOML.put(CODEX, ("model",), '"other"')
    assert changed == CODEX.replace('"gpt-5" # the best', '"other"')
    assert TOML.put(changed, ("model",), old) == CODEX


def test_a_toml_file_keeps_its_line_ends() -> None:
    text = CODEX.replace("\n", "\r\n")
    changed = TOML.put(TOML.put(text, ("model_provider",), '"foveal"'), ("a", "b"), "1")
    assert changed.count("\n") == changed.count("\r\n")
    assert tomllib.loads(changed) == {**tomllib.loads(text), "model_provider": "foveal", "a": {"b": 1}}


def test_a_setting_of_an_empty_toml_file() -> None:
    assert TOML.put("", ("a", "b"), "1") == "[a]\nb = 1\n"
    assert TOML.put("[a]\nb = 1", ("c",), "2") == "c = 2\n[a]\nb = 1\n"


AIDER = "# mine\nmodel: gpt-4.1  # good\nread:\n  - a.md\nfile:\n- b.py\n"


def test_a_setting_of_a_yaml_file_is_added_replaced_and_removed() -> None:
    path = ("openai-api-base",)
    added = YAML.put(AIDER, path, "http://127.0.0.1:8790/v1")
    assert added == AIDER + "openai-api-base: http://127.0.0.1:8790/v1\n"
    assert YAML.put(added, path, "http://127.0.0.1:9/v1") == added.replace("8790", "9")
    assert YAML.remove(added, path) == AIDER
    changed = YAML.put("---\n" + AIDER, ("model",), "other")
    assert yaml.safe_load(changed) == {**yaml.safe_load(AIDER), "model": "other"}
    assert YAML.find(AIDER, ("model",)) == "gpt-4.1  # good"


@pytest.mark.parametrize(
    ("end", "text", "path"),
    [
        ("json", "{", ENV),
        ("json", "[]", ENV),
        ("json", '{"a": 1 "b": 2}', ENV),
        ("json", "{'a': 1}", ENV),
        ("json", '{"env": "none"}', ENV),
        ("json", '{"env": null}', ENV),
        ("json", "{} {}", ENV),
        ("json", '{"a": ' * 200 + "1" + "}" * 200, ENV),
        ("toml", "a = ", ("b",)),
        ("toml", "a = [\n1,\n2]\n", ("a",)),
        ("toml", "a = {b = 1}\n", ("a", "c")),
        ("toml", "a.b = 1\n", ("a", "b")),
        ("toml", "a = 1\n", ("a", "b")),
        ("toml", "[[a]]\nb = 1\n", ("a", "b")),
        ("yml", "{model: gpt}\n", ("model",)),
        ("yml", "model:\n  - a\n", ("model",)),
        ("yml", "model: |\n  a\n", ("model",)),
        ("yml", "a: 1\n---\nb: 1\n", ("model",)),
        ("yml", "just text\n", ("model",)),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_refused(end: str, text: str, path: SettingPath) -> None:
    with pytest.raises(FovealError, match="cannot be changed safely"):
        SETTINGS_FORMATS[end].put(text, path, "1")
