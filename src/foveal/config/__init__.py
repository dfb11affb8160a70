"""What the user has set, from all places that he may set it in, and where each value comes from.

    config = load()                                    # foveal.toml twice, FOVEAL_…, and flags if you have any
    config.get("context.max_history_tokens")           # the value
    config.source("context.max_history_tokens")        # /home/me/.config/foveal/foveal.toml:12
    Session.open(store, id, model=model, **config.session(model))
    config.agent("reviewer").session(model)            # the same with what [agents.reviewer] says

Rising order: defaults, the user's file, the project's file, the environment, flags. Nothing changes afterwards. A
key that there is not, or a value that is not allowed, is a `BadConfig` that names the place and what would be
allowed. What an untrusted project may not set is passed over, and `notes` says so.
"""

from foveal.config.config import Config, ConfigEntry, ServerSettings, without_passwords
from foveal.config.keys import ScheduleSetting, dotted, find
from foveal.config.load import load
from foveal.config.sources import BadConfig, ValueSource, line_of, lines

__all__ = [
    "BadConfig",
    "Config",
    "ConfigEntry",
    "ScheduleSetting",
    "ServerSettings",
    "ValueSource",
    "dotted",
    "find",
    "line_of",
    "lines",
    "load",
    "without_passwords",
]
