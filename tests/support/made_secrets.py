"""Made-up secrets for tests: random text that is the same in every run."""

from __future__ import annotations

import random
import string

ALNUM = string.ascii_letters + string.digits


def made(length: int, letters: str = ALNUM, *, seed: int = 7) -> str:
    """Random text, the same at every run, that begins and ends with a letter or a digit."""
    source = random.Random(f"{seed} {length} {letters}")
    plain = [letter for letter in letters if letter.isalnum()]
    middle = "".join(source.choices(letters, k=length - 2))
    return source.choice(plain) + middle + source.choice(plain)
