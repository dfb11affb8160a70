"""`foveal serve` that stops as soon as it listens: the commands of the documentation are run to their end.

python -m support.serve_once serve --host 0.0.0.0
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from foveal.cli.__main__ import main as foveal


def main(arguments: list[str]) -> int:
    """Run the server in this process, which gives itself SIGTERM once the log says that it listens."""
    printed = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    watcher = threading.Thread(target=_stop_when_it_listens, args=(reading, printed), daemon=True)
    watcher.start()
    try:
        return foveal([*arguments, "--port=0", "--set", "tokenizer=estimate"])
    finally:
        sys.stderr.flush()
        os.dup2(printed, 2)  # the last end for writing, so that the watcher reads to the end
        watcher.join()


def _stop_when_it_listens(reading: int, printed: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            os.write(printed, line)
            if b'"event":"listening"' in line.replace(b'": "', b'":"'):
                os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
