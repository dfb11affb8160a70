"""Event types of the append-only log, under their public name."""

from foveal.core.log.events import *  # noqa: F403 (`__all__` of the module lists the names)
