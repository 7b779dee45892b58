"""SipHash-2-4 with 128-bit output and the form of the vector files, for the scripts beside this one.

No code of the project is used: SipHash is written from its published description and checked against the published vector of the
empty message.
"""
import json
import pathlib
import struct

MASK = (1 << 64) - 1


def rotate(x, by):
    return (x << by | x >> (64 - by)) & MASK


def siphash128(key, data):
    """Returns the 16 bytes of SipHash-2-4-128 of `data` under a key of 16 bytes."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE, 0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]

    def add(a, b, turn):
        v[a] = (v[a] + v[b]) & MASK
        v[b] = rotate(v[b], turn) ^ v[a]

    def rounds(count):
        for _ in range(count):
            add(0, 1, 13)
            v[0] = rotate(v[0], 32)
            add(2, 3, 16)
            add(0, 3, 21)
            add(2, 1, 17)
            v[2] = rotate(v[2], 32)

    whole = len(data) // 8 * 8
    words = [word for (word,) in struct.iter_unpack("<Q", data[:whole])]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    halves = []
    for mark, at in ((0xEE, 2), (0xDD, 1)):
        v[at] ^= mark
        rounds(4)
        halves.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return struct.pack("<QQ", *halves)


assert siphash128(bytes(range(16)), b"").hex() == "a3817f04ba25a8e66df67214c7550293"


def write(name, out):
    """Writes `out` as the JSON file `name` beside this script; lists of rows have one row on each line."""
    path = pathlib.Path(__file__).with_name(name)
    parts = []
    for key, value in out.items():
        listed = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]" if listed else json.dumps(value)
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
