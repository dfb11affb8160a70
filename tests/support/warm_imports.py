"""What the fork server of `warm_start` imports before it forks: all that a chat and a server import.

It also makes what each command makes first, and always the same: its vocabulary, catalogue and argument parser.
"""

from __future__ import annotations

import gc
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from typing import Any

from foveal.core.models.model import model
from foveal.core.redaction.redact import re2_search
from foveal.core.tokens.counter import counter

gc.disable()  # until they are all there: nearly all that is made here, stays
for name in (
    "dbos",
    "foveal.agent.terminal.factory",
    "foveal.agent.terminal.interactive",
    "foveal.agent.terminal.output.streaming",
    "foveal.agent.terminal.start",
    "foveal.cli.served_inspector",
    "foveal.cli.server_commands",
    "foveal.cli.session_commands",
    "foveal.server.gateways.discord",
    "foveal.server.gateways.telegram",
    "foveal.server.http.app",
    "foveal.web.bounded_protocol",
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
    "uvloop",
):
    import_module(name)
counter().count("text")  # loads the vocabulary
model("scripted/model")  # loads the catalogue of models
re2_search()  # compiles the pattern of secrets
cli: Any = import_module("foveal.cli")
program: Any = import_module("foveal.cli.__main__")
cli._parser = cache(cli._parser)  # it has 290 options: to make it takes longer than a short command
key_bindings: Any = import_module("prompt_toolkit.application.application")
key_bindings.load_key_bindings = cache(key_bindings.load_key_bindings)  # 800, the same for each application
key_bindings.load_key_bindings()
with suppress(SystemExit), redirect_stdout(StringIO()):
    program.main(["--help"])
del sys.modules[program.__name__]  # `python -m foveal.cli` runs it anew
gc.collect()
gc.enable()
gc.freeze()  # a collection in a fork would write to these pages, and so copy them
