"""Who is behind a connection, for Python servers on a host with a verifier.

    import whois
    connection, _ = listener.accept()
    who = whois.ask(connection)
    print(who["person"] if who else "a stranger")
"""

import ctypes
import os
import socket
import sys


class _Identity(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("person", "device", "receiver", "rule", "grant")]


_library = ctypes.CDLL(os.environ.get("VOUCHSAFE_LIBRARY", "libvouchsafe.so"), use_errno=True)
_library.vouchsafe_whois.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(_Identity))]
_library.vouchsafe_whois_free.argtypes = [ctypes.POINTER(_Identity)]
_library.vouchsafe_whois_free.restype = None
_library.vouchsafe_error.restype = ctypes.c_char_p


def ask(connection, verifier=None):
    """Returns a dictionary that says who is behind a connection, or None if nobody is known.

    Call it right after accept(). `verifier` is the path of the verifier's socket.
    """
    found = ctypes.POINTER(_Identity)()
    path = verifier.encode() if verifier else None
    known = _library.vouchsafe_whois(connection.fileno(), path, ctypes.byref(found))
    if known < 0:
        raise OSError(ctypes.get_errno(), _library.vouchsafe_error().decode())
    if known == 0:
        return None
    try:
        return {name: getattr(found.contents, name).decode() for name, _ in _Identity._fields_}
    finally:
        _library.vouchsafe_whois_free(found)


if __name__ == "__main__":
    # ADDRESS PORT: greets each client by name.
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    who = ask(connection)
                    connection.sendall(f"hello {who['person'] if who else 'stranger'}\n".encode())
                except OSError as error:
                    print(error, file=sys.stderr, flush=True)
