"""Makes sealed.json beside it: tokens of grants with SEALED (docs/wire.md §3.2, §6.11.3), and what becomes of them inside a
sealed tunnel and outside. Uses none of the project's code.
"""
import hashlib
import hmac
import ipaddress
import struct

from vectors import siphash128, write

PORT, SOURCE, SINGLE, BEARER, IPV6, SEALED = 1, 2, 8, 16, 32, 64
TCP, UDP = 6, 17
MASTER, VERIFIER, EPOCH_LENGTH, NOW = bytes(range(32)), b"edge-1", 3600, 1_800_000_000
EPOCH = NOW // EPOCH_LENGTH


def hkdf(ikm, salt, info):
    """Returns the first 32 bytes of HKDF-SHA256 (RFC 5869)."""
    root = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(root, info + b"\1", hashlib.sha256).digest()


def verifier_key():
    return hkdf(MASTER, b"vouchsafe verifier key v1", VERIFIER + b"\0" + struct.pack(">Q", EPOCH))


def block(address, protocol, port):
    """Returns the scope or destination block of wire.md §3.3, §3.7."""
    packed = ipaddress.ip_address(address).packed
    return packed + struct.pack(">BBH", protocol, 0, port) + (b"" if len(packed) == 4 else bytes(4))


def row(name, inside, reason, address="203.0.113.10", flags=PORT | SEALED, protocol=TCP, port=9100, wrong_tag=False):
    wide = ":" in address
    flags |= IPV6 if wide else 0
    header = struct.pack(">BBBBIQ", 1 << 4 | 3, flags, EPOCH & 255, 128 if wide else 32, NOW + 300, 0x1122334455667788)
    grant_key = siphash128(verifier_key()[:16], header + block(address, protocol, port))
    stamp = struct.pack(">II", NOW, 1)
    tag = siphash128(grant_key, stamp + block(address, protocol, port))[:12]
    if wrong_tag:
        tag = bytes([tag[0] ^ 1]) + tag[1:]
    return dict(name=name, inside=inside, reason=reason, destination=address, protocol=protocol, port=port, now=NOW,
                epoch_length=EPOCH_LENGTH, master_key=MASTER.hex(), verifier=VERIFIER.decode(), header=header.hex(),
                grant_key=grant_key.hex(), token=(header + stamp + tag).hex())


def main():
    rows = []
    for address, family in (("203.0.113.10", "ipv4"), ("2001:db8::10", "ipv6")):
        for protocol, name in ((TCP, "tcp"), (UDP, "udp")):
            of = dict(address=address, protocol=protocol)
            rows += [
                row(f"{family} {name}, sealed, inside", True, None, **of),
                row(f"{family} {name}, sealed, outside", False, "unsealed", **of),
                row(f"{family} {name}, not sealed, inside", True, None, flags=PORT, **of),
                row(f"{family} {name}, not sealed, outside", False, None, flags=PORT, **of),
                row(f"{family} {name}, sealed, for one flow, inside", True, None, flags=PORT | SEALED | SINGLE, **of),
            ]
    for inside in (True, False):
        where = "inside" if inside else "outside"
        rows += [
            row(f"a wrong tag is told before the treatment, {where}", inside, "bad_tag", wrong_tag=True),
            row(f"a bearer's, {where}", inside, "malformed", flags=PORT | SEALED | BEARER),
            row(f"bit 7, {where}", inside, "malformed", flags=PORT | SEALED | 128),
        ]
    write("sealed.json", dict(about="Tokens of grants with SEALED for docs/wire.md §6.11.3, made by sealed.py.", tokens=rows))
    print(f"sealed.json: {len(rows)} tokens")


main()
