"""Where a bot's token may be sent: over https, or to this machine."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from foveal.config import Config
from foveal.errors import BadSetting
from foveal.service.pairing import Face

_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


def base_url(config: Config, face: Face) -> str:
    """The address of `telegram.base_url` or `discord.base_url`; "" is the app's own. Raises `BadSetting`."""
    name = f"{face}.base_url"
    base: str = config.get(name) or ""
    try:
        address = urlsplit(base)
        safe = address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOCAL)
    except ValueError:  # such as a bracket without its end
        safe = False
    if base and not safe:
        raise BadSetting(name, base, "https, because the bot's token is sent there")
    return base
