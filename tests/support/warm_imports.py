"""What the fork server of `warm_start` imports before it forks: all that a chat and a server import."""

from __future__ import annotations

import gc
from importlib import import_module

from foveal.core.models.model import model
from foveal.core.tokens.counter import counter

for name in (
    "dbos",
    "foveal.agent.terminal.factory",
    "foveal.agent.terminal.interactive",
    "foveal.agent.terminal.output.streaming",
    "foveal.agent.terminal.start",
    "foveal.cli.session_commands",
    "foveal.cli.server_commands",
    "foveal.server.http.app",
    "foveal.web.listener",
    "foveal.cli.mcp_command",
    "foveal.mcp_server.recall_server",
    "foveal.cli.serve",
    "foveal.server.jobs.dbos_backend",
    "foveal.server.postgres_storage",
    "foveal.testing.scripted_provider",
    "prompt_toolkit.input.vt100",
    "prompt_toolkit.key_binding.bindings.search",
    "prompt_toolkit.patch_stdout",
    "pygments.lexers.python",
    "rich.markdown",
    "support.warm_start",
):
    import_module(name)
counter().count("text")  # loads the vocabulary
model("scripted/model")  # loads the catalogue of models
gc.collect()
gc.freeze()  # a collection in a fork would write to these pages, and so copy them
