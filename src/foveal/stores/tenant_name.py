"""Names of tenants: part of a file's name in a folder, of every key in a database."""

from __future__ import annotations

import re
from typing import Final

from foveal.errors import BadSetting

TENANT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_tenant_name(name: str) -> str:
    """Return a valid tenant name; raises `BadSetting`."""
    if not TENANT_NAME.fullmatch(name):
        allowed = "1 to 63 lower-case letters, digits, - and _, starting with a letter or digit"
        raise BadSetting("tenant", name, allowed)
    return name
