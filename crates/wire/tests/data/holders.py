#!/usr/bin/env python3
"""Writes holders.json: handles for wire.md 3.9, without any code of the project. Usage: python3 holders.py > holders.json"""
import json
import struct

from vectors import siphash128


def handle(key: bytes, account: int, session: int, chance: int) -> bytes:
    """Returns the handle of a grant, with the random bits that were finally used."""
    holder = struct.pack(">I", account << 8 | session)
    while True:
        mask = siphash128(key[:16], b"hold" + struct.pack(">I", chance))[:4]
        made = bytes(a ^ b for a, b in zip(holder, mask)) + struct.pack(">I", chance)
        if made[0]:
            return made
        chance = (chance + 1) & 0xFFFFFFFF


def main():
    key = bytes(range(32))
    cases = []
    for account in (0, 1, 0x123456, 0xFFFFFF):
        for session in (0, 1, 255):
            for chance in (0, 1, 0xDEADBEEF, 0xFFFFFFFF):
                made = handle(key, account, session, chance)
                cases.append({"verifier_key": key.hex(), "account": account, "session": session, "random": chance, "handle": made.hex()})
    # Random bits whose handle would begin with a zero byte.
    found = 0
    for chance in range(5000):
        made = handle(key, 7, 7, chance)
        if int.from_bytes(made[4:], "big") != chance:
            cases.append({"verifier_key": key.hex(), "account": 7, "session": 7, "random": chance, "handle": made.hex()})
            found += 1
    assert found >= 5
    print(json.dumps(cases, indent=1))


main()
