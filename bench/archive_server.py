"""A server that answers every request with one archive, as fast as sendfile(2) can; for bench.workspace.

`python -m bench.archive_server ARCHIVE` prints its port. It knows no ranges.
"""

import hashlib
import os
import socket
import sys
import threading
from base64 import b64encode
from pathlib import Path


def main(path: Path) -> None:
    with path.open("rb") as file:
        digest = b64encode(hashlib.file_digest(file, "sha256").digest()).decode()
        size = os.fstat(file.fileno()).st_size
        head = (
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-tar\r\n"
            f'content-length: {size}\r\netag: "one"\r\nrepr-digest: sha-256=:{digest}:\r\n\r\n'
        ).encode()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sys.stdout.write(f"{listener.getsockname()[1]} sha-256=:{digest}:\n")
            sys.stdout.flush()
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection, head, file.fileno(), size), daemon=True).start()


def answer(connection: socket.socket, head: bytes, archive: int, size: int) -> None:
    """Answer the requests of one connection."""
    with connection:
        try:
            while b"\r\n\r\n" in connection.recv(65_536):
                connection.sendall(head)
                sent = 0
                while sent < size:
                    sent += os.sendfile(connection.fileno(), archive, sent, size - sent)
        except ConnectionError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
