#!/usr/bin/env python3
"""Makes holders.json: handles for wire.md 3.9, by a SipHash of its own. Usage: python3 holders.py > holders.json"""
import json
import struct

MASK = (1 << 64) - 1


def siphash128(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128-bit output, as its authors describe it."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE, 0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]

    def rotate(x, n):
        return (x << n | x >> (64 - n)) & MASK

    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 255])
    for at in range(0, len(padded), 8):
        (word,) = struct.unpack_from("<Q", padded, at)
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def handle(key: bytes, account: int, session: int, chance: int) -> bytes:
    """The handle of a grant, and with the random bits that were used in the end."""
    holder = struct.pack(">I", account << 8 | session)
    while True:
        mask = siphash128(key[:16], b"hold" + struct.pack(">I", chance))[:4]
        made = bytes(a ^ b for a, b in zip(holder, mask)) + struct.pack(">I", chance)
        if made[0]:
            return made
        chance = (chance + 1) & 0xFFFFFFFF


def main():
    check = siphash128(bytes(range(16)), b"")
    assert check.hex() == "a3817f04ba25a8e66df67214c7550293", "not SipHash"
    key = bytes(range(32))
    cases = []
    for account in (0, 1, 0x123456, 0xFFFFFF):
        for session in (0, 1, 255):
            for chance in (0, 1, 0xDEADBEEF, 0xFFFFFFFF):
                made = handle(key, account, session, chance)
                cases.append({"verifier_key": key.hex(), "account": account, "session": session, "random": chance, "handle": made.hex()})
    # Bits whose handle would begin with a zero byte.
    found = 0
    for chance in range(5000):
        made = handle(key, 7, 7, chance)
        if int.from_bytes(made[4:], "big") != chance:
            cases.append({"verifier_key": key.hex(), "account": 7, "session": 7, "random": chance, "handle": made.hex()})
            found += 1
    assert found >= 5
    print(json.dumps(cases, indent=1))


main()
