"""Errors survive `pickle` and `copy`: a process pool sends them from its workers."""

from __future__ import annotations

import copy
import inspect
import pickle
import pkgutil
import threading
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any, Final

import pytest

import foveal
from foveal.errors import ContextOverflow

VALUES: Final = {"int": 3, "bool": True, "bytes": b"no", "JsonObject": {"message": "no"}, "Law": "Fits"}
"""Arguments by the name of their type; others get a text."""


def error_classes() -> list[type[BaseException]]:
    """All exceptions of the library, found by importing its modules."""
    found: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(foveal.__path__, "foveal."):
        if module.name.endswith("__main__"):
            continue
        try:
            names = vars(import_module(module.name))
        except ModuleNotFoundError as problem:
            if (problem.name or "").startswith("foveal"):
                raise
            continue  # a framework that is not installed
        found |= {
            value
            for value in names.values()
            if isinstance(value, type) and issubclass(value, BaseException)
            if value.__module__.startswith("foveal")
        }
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def example(kind: type[BaseException]) -> BaseException:
    if kind.__init__ in (Exception.__init__, BaseException.__init__):
        return kind("it failed")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        value = VALUES.get(str(parameter.annotation), "text")
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                named[parameter.name] = value
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.kind is not parameter.VAR_KEYWORD:
            positional.append(value)
    return kind(*positional, **named)


def pickled(error: Any) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 (what this test has written)


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
def test_every_error_is_copied_with_its_message_and_fields(copied: Any) -> None:
    kinds = error_classes()
    assert ContextOverflow in kinds
    for kind in kinds:
        error = example(kind)
        error.add_note("while the report was written")
        again = copied(error)
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error)), kind


def test_a_value_that_cannot_be_pickled_arrives_as_its_text() -> None:
    error = pickled(foveal.BadSetting("clock", threading.Lock(), "a function"))
    assert error.field == "clock"
    assert "lock" in error.value


def overflow() -> None:
    rules = {"role": "system", "content": "Rule. " * 3_000}
    foveal.Context("gpt-4.1", window=2_000).fit([rules, {"role": "user", "content": "Hello."}])


def test_a_pool_survives_an_overflow_of_its_worker() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(ContextOverflow) as raised:
            pool.submit(overflow).result(timeout=60)
        assert raised.value.needed > raised.value.available
        assert pool.submit(len, "abc").result(timeout=60) == 3
