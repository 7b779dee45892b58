"""Connects to protected destinations from Python: sockets as the socket module has them.

    import vouchsafe
    session = vouchsafe.Session()
    with session.connect("wiki.example.org", 80) as s:
        s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
"""

import ctypes
import os
import socket
import sys

_library = ctypes.CDLL(os.environ.get("VOUCHSAFE_LIBRARY", "libvouchsafe.so"), use_errno=True)
_library.vouchsafe_open.restype = ctypes.c_void_p
_library.vouchsafe_open.argtypes = [ctypes.c_char_p]
_library.vouchsafe_connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint16, ctypes.c_uint]
_library.vouchsafe_error.restype = ctypes.c_char_p
_library.vouchsafe_close.argtypes = [ctypes.c_void_p]


def _failure():
    return OSError(ctypes.get_errno(), _library.vouchsafe_error().decode())


class Session:
    """The session that `vouchsafe login` began."""

    def __init__(self, folder=None):
        self._session = _library.vouchsafe_open(folder.encode() if folder else None)
        if not self._session:
            raise _failure()

    def connect(self, host, port, timeout=10.0):
        """Returns a connected socket."""
        descriptor = _library.vouchsafe_connect(self._session, host.encode(), port, int(timeout * 1000))
        if descriptor < 0:
            raise _failure()
        return socket.socket(fileno=descriptor)

    def close(self):
        _library.vouchsafe_close(self._session)
        self._session = None


if __name__ == "__main__":
    # HOST PORT WORDS: sends the words, prints the answer.
    session = Session()
    with session.connect(sys.argv[1], int(sys.argv[2])) as stream:
        stream.sendall(sys.argv[3].encode())
        stream.shutdown(socket.SHUT_WR)
        answer = b""
        while part := stream.recv(4096):
            answer += part
    print(answer.decode())
    session.close()
