"""The client of `support.warm_commands`: `python warm_client.py ADDRESS MODULE ARGUMENT…`. It imports little."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"x"], [0, 1, 2])
        given = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
        server.sendall(json.dumps(given).encode())
        server.shutdown(socket.SHUT_WR)
        sys.exit(int(server.recv(16)))
