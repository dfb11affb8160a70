"""The script of exported files: all modules as one."""

from __future__ import annotations

import pytest

from foveal.errors import FovealError
from foveal.inspector.pages import inline_safe, script_bundle, style_bundle


def bundle(**modules: str) -> str:
    return script_bundle("main.js", lambda name: modules[name.removesuffix(".js")])


def test_imported_modules_come_first_and_once() -> None:
    main = 'import { a } from "./one.js";\nimport {\n  b,\n  c,\n} from "./two.js";\n\na(b, c);\n'
    two = 'import { a } from "./one.js";\nexport const b = a;\nexport async function c() {}\n'
    one = "export class A {}\nexport function a() { return `export const x`; }\nexport let d;\n"
    assert bundle(main=main, two=two, one=one) == (
        "class A {}\nfunction a() { return `export const x`; }\nlet d;\n\n"
        "const b = a;\nasync function c() {}\n\n\na(b, c);\n"
    )


def test_modules_that_import_each_other_are_refused() -> None:
    with pytest.raises(FovealError, match=r"main\.js → one\.js → main\.js"):
        bundle(main='import { a } from "./one.js";\n', one='import { b } from "./main.js";\n')


def test_code_cannot_end_its_element() -> None:
    code = 'const a = "</script>" + "<!-- <SCRIPT" + "</Style>"; if (1 < 2) {}'
    assert inline_safe(code) == ('const a = "\\</script>" + "\\<!-- \\<SCRIPT" + "\\</Style>"; if (1 < 2) {}')


def test_the_bundle_of_the_package_has_no_import_left() -> None:
    script = script_bundle()
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]
    assert style_bundle()
