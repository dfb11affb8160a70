"""Configuration from TOML files, environment and flags, with the source of each value.

    config = load()                                    # foveal.toml twice, FOVEAL_… variables, flags
    config.get("context.max_history_tokens")           # the value
    config.source("context.max_history_tokens")        # /home/me/.config/foveal/foveal.toml:12
    Session.open(store, id, model=model, **config.session(model))
    config.agent("reviewer").session(model)            # the same with the values of [agents.reviewer]

1. Later sources override earlier ones: defaults, the user's file, the project's file, the environment, flags.
2. A loaded configuration does not change.
3. An unknown key, or a value that is not allowed, raises `BadConfig`, which names the place and what is allowed.
4. Of a project's file, only the values count that the user allows: `project_items` lists them all, and `notes` says
   which are ignored. Some keys, such as `base_url`, a project can never set.
"""

from foveal.config.config import Config, ConfigChange, ConfigEntry, McpServerSettings
from foveal.config.keys import ScheduleSetting, dotted_name, find_key, strip_url_secrets
from foveal.config.load import load
from foveal.config.sources import BadConfig, ValueSource, key_lines, line_of, setting_flags

__all__ = [
    "BadConfig",
    "Config",
    "ConfigChange",
    "ConfigEntry",
    "McpServerSettings",
    "ScheduleSetting",
    "ValueSource",
    "dotted_name",
    "find_key",
    "key_lines",
    "line_of",
    "load",
    "setting_flags",
    "strip_url_secrets",
]
