"""What `foveal serve` says when it begins: where it is, what it uses, who may come in, what to change in a client,
and where its requests go then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from foveal import __version__
from foveal.apps.http.http_headers import is_loopback
from foveal.apps.http.proxy import Upstreams
from foveal.apps.http.token_command import command
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError
from foveal.providers.selection import SERVICES
from foveal.server import Service
from foveal.server.auth_tokens import AuthTokens
from foveal.server.jobs.schedule import stamp
from foveal.server.jobs.schedule_store import ScheduleStore

ALL: Final = ("0.0.0.0", "::", "")
"""What a host is called that is every address of the machine."""
_KEY: Final = ((b"authorization", b"Bearer a-client's-own-key"),)


def say(text: str) -> None:
    """To whoever started the server."""
    print(visible(text), file=sys.stderr, flush=True)


async def greeting(service: Service, url: str, *, upstreams: Upstreams, chats: str) -> list[str]:
    """The lines; `chats` says how the bots stand."""
    ground = service.ground
    host = ground.config.get("server.host")
    everywhere = ", and at every other address of this machine" if host in ALL else ""
    lines = [
        f"foveal {__version__} serves at {url}{everywhere}",
        f"  model     {_model(service)}",
        f'  drop-in   OpenAI(base_url="{url}/v1") → {await _goal(service, upstreams, "openai")}',
        f'            Anthropic(base_url="{url}") → {await _goal(service, upstreams, "anthropic")}',
        f"  tokens    {await _tokens(service)}",
        f"  folder    {_short(ground.places.folder)}",
        f"  chats     {chats}",
        f"  API       {url}/openapi.json; health: /healthz; figures: /metrics",
    ]
    if not is_loopback(host):
        names = ", ".join(ground.config.get("server.hosts")) or "none"
        lines.insert(5, f"  hosts     its addresses, localhost, and those of server.hosts ({names})")
    if ground.config.schedules:
        lines.insert(-1, f"  schedules {await _schedules(service)}")
    return lines


def _model(service: Service) -> str:
    try:
        provider = service.ground.provider("")
    except FovealError as problem:
        return f"none, so there are drop-in endpoints only; --model provider/model names one ({problem})"
    return f"{provider.name}, {provider.model.window:,} tokens"


async def _goal(service: Service, upstreams: Upstreams, whose: Literal["openai", "anthropic"]) -> str:
    """Where drop-in requests go, as far as it may be told."""
    target = await upstreams.target("anthropic" if whose == "anthropic" else "openai_chat", _KEY)
    place = urlsplit(target.url).netloc.rpartition("@")[2]
    known = SERVICES[whose]
    ours = any(service.ground.environment.get(name) for name in known.keys)
    if ours or place != urlsplit(known.url).netloc:
        return place
    local = upstreams.own() if whose == "openai" else ""
    return f"{place}, with the client's own key{local and f'; without one, {local}'}"


async def _tokens(service: Service) -> str:
    every = await AuthTokens(service.ground.database).list()
    good = [token for token in every if token.revoked is None]
    if not every:
        create = command("token create", named_folder(service))
        return f"none: everybody on this machine may ask; {create} makes the first"
    tenants = sorted({token.tenant for token in good})
    return f"{len(good)} for {len(tenants)} tenant{'s' if len(tenants) != 1 else ''}; a request needs one"


async def _schedules(service: Service) -> str:
    """Those of the configuration: a typing error shows in when they come."""
    configured = service.ground.config.schedules
    timetable = ScheduleStore(service.ground.database)
    lines = [
        line
        for tenant in {schedule.tenant for schedule in configured}
        for line in await timetable.lines(tenant)
        if line.schedule.source == "config"
    ]
    told = f"{len(configured)} of the configuration"
    if lines:
        following = min(lines, key=lambda line: line.following)
        told += f"; the next is {following.schedule.name}, at {stamp(following.following)}"
    return told


def named_folder(service: Service) -> Path | None:
    """The folder, if other commands would not find it by themselves."""
    given = service.ground.config.source("server.folder").kind == "flag"
    return service.ground.places.folder if given else None


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


# ── the local model ──────────────────────────────────────────────────────────────────────────────────────


class FetchProgress:
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
