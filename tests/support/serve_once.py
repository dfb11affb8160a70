"""`foveal serve` that stops as soon as it listens: the commands of the documentation are run to their end.

python -m support.serve_once serve --host 0.0.0.0
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "foveal.cli", *arguments, "--port=0", "--set", "tokenizer=estimate"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            if '"event":"listening"' in line.replace('": "', '":"'):
                os.kill(process.pid, signal.SIGTERM)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
