"""What the fork server of `warm_start` imports before it forks: all that a chat and a server import."""

from __future__ import annotations

import gc
from importlib import import_module

from foveal.core.tokens.counter import counter

for name in (
    "dbos",
    "foveal.apps.cli.chat.factory",
    "foveal.apps.cli.chat.interactive",
    "foveal.apps.cli.session_commands",
    "foveal.apps.gateways.pair_command",
    "foveal.apps.http.app",
    "foveal.apps.http.listener",
    "foveal.apps.http.token_command",
    "foveal.apps.serve",
    "foveal.server.jobs.dbos_engine",
    "foveal.server.postgres_storage",
    "foveal.testing",
    "support.warm_start",
):
    import_module(name)
counter()  # loads the vocabulary
gc.collect()
gc.freeze()  # a collection in a fork would write to these pages, and so copy them
