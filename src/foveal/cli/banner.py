"""Startup message of `foveal serve`: address, model, upstreams, tokens, storage, bots."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from foveal import __version__
from foveal.cli.server_commands import shell_command
from foveal.core.log.events import Dialect
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError
from foveal.providers.local.model import LocalModel
from foveal.providers.selection import SERVICES
from foveal.server import Service
from foveal.server.auth_tokens import AuthTokens
from foveal.server.jobs.schedule_store import ScheduleStore, format_time
from foveal.server.proxy.upstreams import Upstreams
from foveal.web.http_headers import is_loopback

WILDCARD_HOSTS: Final = ("0.0.0.0", "::", "")
"""Values of `server.host` that mean every address of this machine."""
_EXAMPLE_CLIENT_KEY: Final = ((b"authorization", b"Bearer a-client's-own-key"),)
"""Headers of a client that sends a provider's key."""


def print_line(text: str) -> None:
    """Print to standard error, with control characters escaped."""
    print(visible(text), file=sys.stderr, flush=True)


async def banner_lines(service: Service, url: str, *, upstreams: Upstreams, chats: str) -> list[str]:
    """Return the lines of the message; `chats` describes the bots."""
    runtime = service.runtime
    host = runtime.config.get("server.host")
    everywhere = ", and on every other address of this machine" if host in WILDCARD_HOSTS else ""
    lines = [
        f"foveal {__version__} listening on {url}{everywhere}",
        f"  model     {_model_text(service)}",
        f'  drop-in   OpenAI(base_url="{url}/v1") → {await _upstream(service, upstreams, "openai")}',
        f'            Anthropic(base_url="{url}") → {await _upstream(service, upstreams, "anthropic")}',
        f"  tokens    {await _tokens_text(service)}",
        f"  {_storage_text(service)}",
        f"  chats     {chats}",
        f"  inspector {url}/inspect/; API: /openapi.json; health: /healthz; metrics: /metrics",
    ]
    if not is_loopback(host):
        names = ", ".join(runtime.config.get("server.hosts")) or "none"
        lines.insert(5, f"  hosts     localhost, the addresses of this machine, and server.hosts ({names})")
    if runtime.config.schedules:
        lines.insert(-1, f"  schedules {await _schedules_text(service)}")
    return lines


def _model_text(service: Service) -> str:
    try:
        provider = service.runtime.provider("")
    except FovealError as problem:
        return f"none: only the drop-in endpoints work; set --model provider/model ({problem})"
    is_missing = isinstance(provider, LocalModel) and not provider.is_downloaded
    later = "; not on this machine yet: the first request that needs it downloads it" if is_missing else ""
    return f"{provider.name}, {provider.model.window:,} tokens{later}"


async def _upstream(service: Service, upstreams: Upstreams, api: Literal["openai", "anthropic"]) -> str:
    """Return the host that drop-in requests go to, without credentials of its URL."""
    dialect: Dialect = "anthropic" if api == "anthropic" else "openai_chat"
    target = await upstreams.target(dialect, _EXAMPLE_CLIENT_KEY)
    host = urlsplit(target.url).netloc.rpartition("@")[2]
    known = SERVICES[api]
    has_key = any(service.runtime.environment.get(name) for name in known.key_variables)
    if has_key or host != urlsplit(known.url).netloc:
        return host
    local = upstreams.local_model_name() if api == "openai" else ""
    return f"{host}, with the client's own key{local and f'; without one, {local}'}"


async def _tokens_text(service: Service) -> str:
    found = await AuthTokens(service.runtime.database).list()
    valid = [token for token in found if token.revoked is None]
    if not found:
        create = shell_command("token create", explicit_folder(service))
        return f"none: every program on this machine has access; {create} creates the first"
    tenants = [token.tenant for token in valid if token.role == "tenant"]
    count = len(set(tenants))
    others = len(valid) - len(tenants)
    return (
        f"{len(tenants)} for {count} tenant{'s' if count != 1 else ''}"
        f"{f', {others} for administration or metrics' if others else ''}; every request needs one"
    )


async def _schedules_text(service: Service) -> str:
    """Describe the configured schedules; the time of the next one shows a mistake in a cron field."""
    configured = service.runtime.config.schedules
    store = ScheduleStore(service.runtime.database)
    states = [
        state
        for tenant in {schedule.tenant for schedule in configured}
        for state in await store.list(tenant)
        if state.schedule.source == "config"
    ]
    text = f"{len(configured)} in the configuration"
    if states:
        first = min(states, key=lambda state: state.next_due)
        text += f"; next: {first.schedule.name} at {format_time(first.next_due)}"
    return text


def explicit_folder(service: Service) -> Path | None:
    """Return the folder if it was set by a flag, so other commands need `--folder` too; otherwise None."""
    from_flag = service.runtime.config.source("server.folder").kind == "flag"
    return service.runtime.storage.folder if from_flag else None


def _storage_text(service: Service) -> str:
    storage = service.runtime.storage
    return (
        f"database  {storage.place}" if storage.folder is None else f"folder    {_short_path(storage.folder)}"
    )


def _short_path(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


# ── Download of the local model ──────────────────────────────────────────────────────────────────────────


class ModelDownloadPrinter:
    """Prints the progress of a download that a request has begun, one line per `step` percent."""

    def __init__(self, step: float = 10.0) -> None:
        self._step = step
        self._next = 0.0
        self._stage = ""

    def __call__(self, progress: Any) -> None:
        if progress.stage != self._stage:
            self._stage, self._next = progress.stage, 0.0
            if progress.stage == "fetching":
                print_line(f"Downloading the local model, {progress.total / 1e6:,.0f} MB, once:")
        if progress.stage == "fetching" and progress.percent >= self._next:
            self._next = progress.percent - progress.percent % self._step + self._step
            print_line(f"  {progress.done / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB")
