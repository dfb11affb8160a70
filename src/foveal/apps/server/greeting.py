"""What `foveal serve` says when it begins: where it is, what it uses, who may come in, and what to change in a
client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foveal import __version__
from foveal.config import Config
from foveal.errors import FovealError
from foveal.service import Service
from foveal.service.tokens import Tokens
from foveal.visible import visible

CHATS: Final = (("Telegram", "telegram", "TELEGRAM_BOT_TOKEN"), ("Discord", "discord", "DISCORD_BOT_TOKEN"))


def say(text: str) -> None:
    """To whoever started the server."""
    print(visible(text), file=sys.stderr, flush=True)


async def greeting(service: Service, url: str) -> list[str]:
    ground = service.ground
    return [
        f"foveal {__version__} serves at {url}",
        f"  model     {_model(service)}",
        f'  drop-in   OpenAI(base_url="{url}/v1"), Anthropic(base_url="{url}")',
        f"  tokens    {await _tokens(service)}",
        f"  folder    {_short(ground.places.folder)}",
        f"  chats     {_chats(ground.config, ground.environment)}",
        f"  API       {url}/openapi.json; health: /healthz; figures: /metrics",
    ]


def _model(service: Service) -> str:
    try:
        provider = service.ground.provider("")
    except FovealError as problem:
        return f"none, so there are drop-in endpoints only ({problem})"
    return f"{provider.name}, {provider.model.window:,} tokens"


async def _tokens(service: Service) -> str:
    every = await Tokens(service.ground.cabinet).list()
    good = [token for token in every if token.revoked is None]
    if not every:
        return "none: everybody on this machine may ask; `foveal token create` makes the first"
    tenants = sorted({token.tenant for token in good})
    return f"{len(good)} for {len(tenants)} tenant{'s' if len(tenants) != 1 else ''}; a request needs one"


def _chats(config: Config, environment: Mapping[str, str]) -> str:
    told = []
    for title, face, variable in CHATS:
        if not environment.get(variable, "").strip():
            told.append(f"{title} off ({variable} is not set)")
        else:
            allowed = len(config.get(f"{face}.allowed"))
            told.append(f"{title} on ({allowed} allowed, others by `foveal pair {face}`)")
    return ", ".join(told)


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


# ── the local model ──────────────────────────────────────────────────────────────────────────────────────


class Fetching:
    """Tells how far the local model has come, in steps that a log can bear."""

    def __init__(self, step: float = 10.0) -> None:
        self._step = step
        self._next = 0.0
        self._stage = ""

    def __call__(self, progress: Any) -> None:
        if progress.stage != self._stage:
            self._stage, self._next = progress.stage, 0.0
        if progress.stage == "fetching" and progress.percent >= self._next:
            self._next = progress.percent - progress.percent % self._step + self._step
            say(f"  {progress.done / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB")


def to_fetch(service: Service) -> Any:
    """The local model, when sessions of this server need it and it is not on the disk yet."""
    try:
        provider: Any = service.ground.provider("")
    except FovealError:
        return None
    return provider if getattr(provider, "fetched", True) is False else None
