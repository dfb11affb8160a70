"""Reload of the configuration of a running server, on SIGHUP.

1. The whole configuration is read again: the file, the environment of the process and the flags of the command. If
   anything in it is wrong, or a file is gone, nothing changes, and a line in the log says what.
2. What changes is in the log with the old and the new value, without secrets, and in the audit trail by its name.
3. Settings of `RESTART_SETTINGS` cannot change while the server runs. They keep their values, and a line in the log
   names them.
4. No connection ends. A request that has begun ends with the settings that it began with, and so does a session of
   the API that is open; its next turn after it was closed has the new ones.

A terminal that is closed sends SIGHUP too: then the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from foveal.config import Config, ConfigChange
from foveal.errors import FovealError, StoreError
from foveal.server import Service
from foveal.server.http import json_logs
from foveal.server.jobs import JobWorker
from foveal.web.http_errors import encode_json

RESTART_SETTINGS: Final = (
    "server.host",
    "server.port",
    "server.folder",
    "server.database",
    "server.proxy_retention_days",
)
RESTART_TABLES: Final = ("telegram", "discord", "mcp")
"""Tables whose settings belong to what was started: bots, and programs with tools."""


class ConfigReload:
    """Reloads the configuration of one server."""

    def __init__(
        self,
        service: Service,
        worker: JobWorker,
        *,
        read: Callable[[], Config],
        check: Callable[[Config], None],
        stop: Callable[[], None],
    ) -> None:
        """`read` returns the configuration as it is now; `check` raises the errors of a start with it."""
        self._service, self._worker = service, worker
        self._read, self._check, self._stop = read, check, stop
        self._is_at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[bool]] = set()

    def listen(self) -> None:
        """Install the signal handler in the running loop."""
        with suppress(AttributeError, NotImplementedError):  # Windows has no such signal
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_signal)

    def _on_signal(self) -> None:
        if self._is_at_terminal and not sys.stdin.isatty():
            self._stop()
            return
        task = asyncio.create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> bool:
        """Read the configuration again and use it; return False if it was refused."""
        async with self._lock:
            before = self._service.runtime.config
            try:
                config = self._read()
                _check_files(before, config)
                fixed = [one for one in before.changes(config) if _needs_restart(one.name)]
                config = config.with_values_of(before, _needs_restart)
                changes = before.changes(config)
                self._check(config)
                await self._worker.set_schedules(config)
                if changes:
                    names = [change.name for change in changes]
                    await self._service.runtime.audit.record_config(config, changed=names)
            except (FovealError, OSError) as problem:
                text = " ".join(str(problem).split())  # the log keeps one line
                why = "the database cannot be written" if isinstance(problem, StoreError) else text
                json_logs.log_event("reload_refused", {"why": why}, level=logging.ERROR)
                return False
            self._service.runtime.use_config(config)
            for change in changes:
                json_logs.log_event("setting_changed", _logged(change))
            for change in fixed:
                json_logs.log_event("restart_needed", _logged(change), level=logging.WARNING)
            json_logs.log_event("reloaded", {"changed": len(changes), "restart_needed": len(fixed)})
            return True


def _check_files(before: Config, config: Config) -> None:
    """Raise `FovealError` if a file is gone: without it, all its limits would end."""
    now = dict(config.files)
    for path, was_read in before.files:
        if was_read and not now.get(path):
            raise FovealError(f"{path} is gone: write an empty file to remove all its settings")


def _needs_restart(name: str) -> bool:
    return name in RESTART_SETTINGS or name.partition(".")[0] in RESTART_TABLES


def _logged(change: ConfigChange) -> dict[str, Any]:
    return {"setting": change.name, "before": _text(change.before), "after": _text(change.after)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()
