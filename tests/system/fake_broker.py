"""A server that says what a test wants of an MQTT broker."""

from __future__ import annotations

import socket
import threading

from .commands import at


class FakeBroker:
    """
    Takes connections; each gets these answers, one for each read, then is closed or left alone.
    """

    def __init__(self, *answers: bytes, stay: bool = False) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        self.address = at(self._server.getsockname())
        threading.Thread(target=self._serve, args=(answers, stay), daemon=True).start()

    def _serve(self, answers: tuple[bytes, ...], stay: bool) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            for answer in answers:
                connection.recv(4096)
                connection.sendall(answer)
            if stay:
                self._kept.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close what is open."""
        for kept in (self._server, *self._kept):
            kept.close()
