"""Downloads the bundled model while `make chat` installs the rest, if the chat is going to use it.

`python tools/fetch_model.py PID` ends when the process PID, which is that of make, has ended. It prints nothing:
the chat shows how far the download is, and says what is wrong with it. It needs no package but msgspec.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from foveal.config import load
from foveal.errors import FovealError
from foveal.providers import LOCAL_SERVICE
from foveal.providers.local.download import QWEN_05B, fetch, weights_folder
from foveal.providers.selection import FACTORY_VARIABLE, split_model_name


def is_needed() -> bool:
    """Return whether a chat without options would use the bundled model."""
    if sys.platform == "darwin" or os.environ.get(FACTORY_VARIABLE) or os.environ.get("FOVEAL_GGUF"):
        return False
    return split_model_name(load(".", project=False).model or None, os.environ) == (LOCAL_SERVICE, "")


async def fetch_while_running(pid: int) -> None:
    """Download the model until a process has ended; the parts so far are kept."""
    fetching = asyncio.create_task(fetch(QWEN_05B, weights_folder(os.environ)))
    while not fetching.done() and _is_running(pid):
        await asyncio.wait({fetching}, timeout=1)
    fetching.cancel()
    await asyncio.wait({fetching})


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background processes without it
    try:
        if is_needed():
            asyncio.run(fetch_while_running(int(sys.argv[1])))
    except FovealError:
        sys.exit(1)
