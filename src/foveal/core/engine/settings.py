"""What a conversation is run with: model, policy, caps and counter, from the values that a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict, Unpack

from msgspec.structs import replace

from foveal.core.models import model as models
from foveal.core.models.budget import Caps
from foveal.core.models.model import Model
from foveal.core.policies import Policy, policy
from foveal.core.tokens.counter import Counter, counter
from foveal.errors import BadSetting


class GivenSettings(TypedDict, total=False):
    """Keyword arguments of `Context` and `Session`; each is optional."""

    policy: str | Mapping[str, Any] | Policy
    """A preset's name, a table of its values, or a policy."""
    window: int | None
    """Tokens that the model holds, if you know better."""
    reserve: int | None
    """Tokens kept free for the answer."""
    margin: float
    """Share of the window that is never planned for."""
    max_input_tokens: int | None
    max_output_tokens: int | None
    """What the model may write; also the reserve, unless that is given."""
    max_history_tokens: int
    """A cap on messages other than instructions; 0 is none."""
    max_images: int
    max_media_bytes: int
    tokenizer: str | Counter
    """A vocabulary's name, "auto", "estimate", or a counter."""


class EngineSettings(NamedTuple):
    model: Model
    policy: Policy
    caps: Caps
    counter: Counter


def engine_settings(model: str | Model, **settings: Unpack[GivenSettings]) -> EngineSettings:
    """Everything that the engine needs; raises `BadSetting` with the name of the field. None is as good as
    not given."""
    given: dict[str, Any] = {field: value for field, value in settings.items() if value is not None}
    for field in given:
        if field not in GivenSettings.__annotations__:
            raise BadSetting(
                field, given[field], f"no such setting; there are {', '.join(GivenSettings.__annotations__)}"
            )
    window, output = given.get("window"), given.get("max_output_tokens")
    if not isinstance(model, str | Model):
        raise BadSetting("model", model, 'a name such as "gpt-4.1", or a `foveal.Model`')
    if isinstance(model, str):
        model = models.model(model, window=window, max_output=output)
    else:
        model = _changed(model, window, output)
    caps = {field: given[field] for field in Caps.__struct_fields__ if field in given}
    if output is not None:
        caps.setdefault("reserve", output)
    tokenizer = given.get("tokenizer", "auto")
    return EngineSettings(
        model,
        policy(given.get("policy", "economy")),
        Caps(**caps),
        counter(tokenizer, model=model.name) if isinstance(tokenizer, str) else tokenizer,
    )


def _changed(model: Model, window: int | None, output: int | None) -> Model:
    if window is not None:
        known = models.model(model.name, window=window)  # checks the value
        model = replace(model, window=window, max_input=min(known.max_input, window))
    if output is not None:
        model = replace(model, max_output=min(output, model.window))
    return model
