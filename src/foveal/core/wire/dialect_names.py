"""Names of dialects: the ones that Foveal prints, and the short ones that it accepts too."""

from __future__ import annotations

from typing import Final, cast, get_args

from foveal.core.log.events import Dialect
from foveal.errors import BadSetting

DIALECTS: Final = tuple(name for name in get_args(Dialect) if name)
"""The dialects, as errors, help texts and logs spell them."""
SHORT_NAMES: Final[dict[str, Dialect]] = {"openai": "openai_chat", "responses": "openai_responses"}
"""Other spellings of dialects, which every argument accepts."""
_NAMED: Final = {**{name: name for name in get_args(Dialect)}, **SHORT_NAMES}


def full_name(word: str) -> str:
    """Return a short name of a dialect as Foveal prints it, and any other word as it is."""
    return SHORT_NAMES.get(word, word)


def checked_dialect(name: object) -> Dialect:
    """Return the dialect of a name, or "" for one to detect; raises `BadSetting` for anything else."""
    found = _NAMED.get(name) if isinstance(name, str) else None
    if found is None:
        raise BadSetting("dialect", name, f'one of {", ".join(DIALECTS)}, or "" to detect it')
    return cast(Dialect, found)
