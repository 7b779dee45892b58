#!/usr/bin/env python3
"""Writes seal.json: vectors and cases for docs/wire.md §9, without any code of the project.

Needs the `cryptography` package. Byte strings are hex. A row of `handshakes` has every key of one handshake and of the phase
after it, and records of all kinds in each phase. A row of `wrong_records` opens under no key: `malformed` if its form is wrong,
`bad_tag` if its seal is. Rows of `wrong_initiations` also have the outcomes `unknown_suite` and `right`. All rows of
`wrong_controls` are malformed.
"""
import hashlib
import hmac
import ipaddress
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from vectors import siphash128, write

NOW = 1_800_000_000
AES_CMAC, SIPHASH = 2, 3
PORT, IPV6 = 1, 32
INITIATION, RESPONSE, EARLY, PACKET, BLOCK, CONTROL, UNKNOWN = range(1, 8)
AUTHENTICATE, ENCRYPT = 1, 2
NONE, LZ4, ZSTD = 0, 1, 2
SUITES = {1: ("aes-128-gcm", 16, AESGCM), 2: ("aes-256-gcm", 32, AESGCM), 3: ("chacha20-poly1305", 32, ChaCha20Poly1305)}
FROM_INITIATOR, FROM_RESPONDER = 0, 1
REFUSALS = ["no_suite", "limit", "revoked"]
CLOSES = ["ended", "revoked", "expired", "limit"]


def mac(suite, key, data):
    if suite == SIPHASH:
        return siphash128(key, data)
    cmac = CMAC(AES(key))
    cmac.update(data)
    return cmac.finalize()


def extract(salt, ikm):
    return hmac.new(salt, ikm, hashlib.sha256).digest()


def expand(key, info, length=32):
    return HKDFExpand(SHA256(), length, info).derive(key)


def sha256(data):
    return hashlib.sha256(data).digest()


def public(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def shared(private, theirs):
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(theirs))


def destination_block(address, port, protocol=17):
    address = ipaddress.ip_address(address)
    return address.packed + struct.pack(">BBH", protocol, 0, port) + (bytes(4) if address.version == 6 else b"")


def grant_header(suite, flags, handle, prefix_length, version=1):
    return struct.pack(">BBBBIQ", version << 4 | suite, flags, NOW // 3600 & 255, prefix_length, NOW + 300, handle)


def initiation(grant, key, destination, index, share, forward=True, suites=7, fast=3, time=NOW, version=1, flags=None,
               zero=0, kind=INITIATION, tag=None):
    flags = int(forward) if flags is None else flags
    head = struct.pack(">BBBBIII", kind, version << 4 | flags, suites, fast, index, time, zero) + grant + share
    return head + (mac(grant[0] & 15, key, head + destination) if tag is None else tag)


def response_head(index, own_index, share, forward=True, suites=7, fast=3, refusal=0, version=1, flags=None, zero=bytes(3),
                  kind=RESPONSE):
    flags = int(forward) if flags is None else flags
    head = struct.pack(">BBBBIIB", kind, version << 4 | flags, suites, fast, index, own_index, refusal)
    return head + zero + share


def header(kind, treatment, suite, index, lane, number, compression=NONE, detail=0):
    return struct.pack(">BBBBIQ", kind, compression << 4 | treatment, suite, detail, index, lane << 56 | number)


def record_key(secret, direction, treatment, suite):
    _, length, _ = SUITES[suite]
    material = expand(secret, b"key" + bytes([direction, treatment, suite]), length + 12)
    return material[:length], material[length:]


def seal(secret, direction, head, body, key_treatment=None):
    """Seals a record; `key_treatment` selects another treatment's key than the header's."""
    treatment, suite = head[1] & 15, head[2]
    key, iv = record_key(secret, direction, key_treatment or treatment, suite)
    nonce = bytes(a ^ b for a, b in zip(iv, bytes(4) + head[8:]))
    aead = SUITES[suite][2](key)
    if treatment == ENCRYPT:
        return head + aead.encrypt(nonce, body, head)
    return head + body + aead.encrypt(nonce, b"", head + body)


def rekey(phase, index, share, have=0, kind=1, zero=0):
    return struct.pack(">BBHII", kind, have, zero, phase, index) + share


def ipv4(length):
    packet = struct.pack(">BBHHBBBBH", 0x45, 0, length, 0, 0x40, 0, 64, 17, 0) + bytes([10, 0, 0, 5, 10, 0, 0, 9])
    return (packet + bytes(range(256)) * 8)[:length]


def records(secrets, indices):
    """Makes records of each phase, in both directions, of all suites and treatments."""
    rows = []

    def add(name, phase, direction, head, body):
        rows.append(dict(name=name, phase=phase, direction=direction, type=head[0], treatment=head[1] & 15,
                         compression=head[1] >> 4, suite=head[2], detail=head[3], index=struct.unpack(">I", head[4:8])[0],
                         lane=head[8], number=int.from_bytes(head[9:], "big"), body=body.hex(),
                         record=seal(secrets[phase], direction, head, body).hex()))

    add("early", 0, 0, header(EARLY, ENCRYPT, 1, indices[0][0], 0, 0), ipv4(60))
    add("early, checksum begun, another suite", 0, 0, header(EARLY, ENCRYPT, 3, indices[0][0], 0, 1, detail=1), ipv4(28))
    for phase in (1, 2):
        for direction in (0, 1):
            to = indices[phase][1 - direction]
            for suite, (name, _, _) in SUITES.items():
                for treatment in (AUTHENTICATE, ENCRYPT):
                    head = header(PACKET, treatment, suite, to, suite, treatment + 100 * phase)
                    add(f"packet, {name}", phase, direction, head, ipv4(64 if suite == 3 else 33))
    to = indices[1][1]
    add("packet of one byte", 1, 0, header(PACKET, ENCRYPT, 1, to, 0, 9), b"\x45")
    add("packet, checksum begun", 1, 0, header(PACKET, AUTHENTICATE, 2, to, 7, 2**56 - 1, detail=1), ipv4(120))
    add("a block's first part of several", 1, 0, header(BLOCK, ENCRYPT, 2, to, 1, 77, compression=ZSTD), bytes(40))
    add("a block's last part", 1, 0, header(BLOCK, AUTHENTICATE, 1, to, 1, 78, compression=LZ4, detail=0xff), bytes(7))
    add("ping", 1, 0, header(CONTROL, ENCRYPT, 3, to, 0, 10), bytes([2, 0, 0, 0]) + bytes(range(8)))
    return rows


def handshake(name, suite, address, port, forward, number):
    version6 = ipaddress.ip_address(address).version == 6
    destination = destination_block(address, port)
    grant = grant_header(suite, PORT | (IPV6 if version6 else 0), 0x1122334455667788 + number, 128 if version6 else 32)
    key = sha256(b"grant key" + bytes([number]))[:16]
    privates = [sha256(b"private" + bytes([number, which])) for which in range(4)]
    shares = [public(private) if forward else private for private in privates]
    # (initiator's, responder's) by phase; early records carry the initiator's index.
    indices = [(0x01020304 + number,) * 2, (0x01020304 + number, 0xF0E0D0C0 + number), (0x0A0B0C0D, 0xDEADBEEF)]

    def joint_input(mine, theirs):
        return shared(privates[mine], shares[theirs]) if forward else bytes(32)

    first = initiation(grant, key, destination, indices[1][0], shares[0], forward)
    root = extract(b"vouchsafe seal v1", key)
    h1 = sha256(first + destination)
    head = response_head(indices[1][0], indices[1][1], shares[1], forward, suites=5, fast=1)
    joint = extract(expand(root, b"join" + h1), joint_input(0, 1))
    assert not forward or joint_input(0, 1) == shared(privates[1], shares[0])
    h2 = sha256(h1 + head)
    secrets = [expand(root, b"early" + h1), expand(joint, b"phase" + h2)]
    parts = struct.pack(">I", 2) + b"".join(struct.pack(">I", indices[2][end]) + shares[2 + end] for end in (0, 1))
    secrets.append(expand(extract(expand(secrets[1], b"next"), joint_input(2, 3)), b"phase" + sha256(parts)))
    refused = []
    joint = extract(expand(root, b"join" + h1), bytes(32))
    for refusal, reason in enumerate(REFUSALS, 1):
        no = response_head(indices[1][0], 0, bytes(32), forward, refusal=refusal)
        refused.append(dict(reason=reason, response=(no + expand(joint, b"confirm" + sha256(h1 + no), 16)).hex()))
    joint = extract(expand(root, b"join" + h1), joint_input(0, 1))
    controls = [
        rekey(2, indices[2][0], shares[2]), rekey(2, indices[2][1], shares[3], have=1),
        rekey(2**32 - 1, 2**32 - 1, bytes(32), have=1), bytes([2, 0, 0, 0]) + bytes(range(8)),
        bytes([3, 0, 0, 0]) + bytes(range(8)),
    ] + [bytes([4, reason, 0, 0]) for reason in range(1, 5)]
    return dict(
        name=name, address=address, port=port, grant=grant.hex(), key=key.hex(), forward=forward,
        privates=[private.hex() for private in privates], shares=[share.hex() for share in shares],
        shared=[joint_input(0, 1).hex(), joint_input(2, 3).hex()], indices=[list(pair) for pair in indices],
        initiation=first.hex(),
        response=(head + expand(joint, b"confirm" + h2, 16)).hex(), refused=refused,
        secrets=[secret.hex() for secret in secrets], records=records(secrets, indices),
        controls=[control.hex() for control in controls])


def changed(bytes_, at, value=1):
    return bytes_[:at] + bytes([bytes_[at] ^ value]) + bytes_[at + 1:]


def wrong_records():
    secret = sha256(b"phase secret")

    def one(kind=PACKET, treatment=ENCRYPT, suite=1, lane=0, number=5, compression=NONE, detail=0, body=bytes(20)):
        return seal(secret, 0, header(kind, treatment, suite, 7, lane, number, compression, detail), body)

    def form(kind=PACKET, byte=ENCRYPT, suite=1, detail=0, lane=0, index=7):
        return struct.pack(">BBBBIQ", kind, byte, suite, detail, index, lane << 56 | 5) + bytes(36)

    whole, clear = one(), one(treatment=AUTHENTICATE)
    rows = [(f"cut to {length} bytes", "malformed", whole[:length]) for length in (0, 1, 15, 16, 31, 32)]
    rows += [(f"type {kind}", "malformed", form(kind)) for kind in (0, 1, 2, 7, 8, 255)]
    rows += [
        ("no treatment", "malformed", form(byte=0)), ("an unknown treatment", "malformed", form(byte=3)),
        ("a packet that is compressed", "malformed", form(byte=ZSTD << 4 | ENCRYPT)),
        ("an early record that is compressed", "malformed", form(EARLY, LZ4 << 4 | ENCRYPT)),
        ("a control record that is compressed", "malformed", form(CONTROL, LZ4 << 4 | ENCRYPT)),
        ("an early record in clear", "malformed", form(EARLY, AUTHENTICATE)),
        ("a control record in clear", "malformed", form(CONTROL, AUTHENTICATE)),
        ("a block that is not compressed", "malformed", form(BLOCK)),
        ("an unknown compression", "malformed", form(BLOCK, 3 << 4 | ENCRYPT)),
        ("suite 0", "malformed", form(suite=0)), ("an unknown suite", "malformed", form(suite=4)),
        ("an unknown flag of a packet", "malformed", form(detail=2)),
        ("an unknown flag of an early record", "malformed", form(EARLY, detail=0x81)),
        ("a detail of a control record", "malformed", form(CONTROL, detail=1)),
        ("lane 8", "malformed", form(lane=8)), ("lane 255", "malformed", form(lane=255)),
        ("index 0", "malformed", form(index=0)),
    ]
    for name, record in (("encrypted", whole), ("in clear", clear)):
        rows += [(f"{name}, byte {at} changed", "bad_tag", changed(record, at))
                 for at in (3, 4, 7, 9, 15, 16, 35, 36, len(record) - 1)]
        rows += [(f"{name}, a byte more", "bad_tag", record + b"\0"), (f"{name}, a byte less", "bad_tag", record[:-1])]
    rows += [
        ("shown as authenticated", "bad_tag", changed(whole, 1, 3)), ("shown as encrypted", "bad_tag", changed(clear, 1, 3)),
        ("shown as another suite", "bad_tag", changed(whole, 2, 3)),
        ("shown as early", "bad_tag", bytes([EARLY]) + whole[1:]),
        ("shown as control", "bad_tag", bytes([CONTROL]) + whole[1:]),
        ("encrypted with the key for authenticating", "bad_tag",
         seal(secret, 0, header(PACKET, ENCRYPT, 1, 7, 0, 5), bytes(20), key_treatment=AUTHENTICATE)),
        ("authenticated with the key for encrypting", "bad_tag",
         seal(secret, 0, header(PACKET, AUTHENTICATE, 1, 7, 0, 5), bytes(20), key_treatment=ENCRYPT)),
        ("of the other direction", "bad_tag", seal(secret, 1, header(PACKET, ENCRYPT, 1, 7, 0, 5), bytes(20))),
        ("of another phase", "bad_tag", seal(sha256(secret), 0, header(PACKET, ENCRYPT, 1, 7, 0, 5), bytes(20))),
        ("aes-128-gcm under chacha20-poly1305's name", "bad_tag", one(suite=1)[:2] + b"\3" + one(suite=1)[3:]),
        ("all zero behind the header", "bad_tag", whole[:16] + bytes(36)),
    ]
    return [dict(name=name, secret=secret.hex(), outcome=outcome, record=record.hex()) for name, outcome, record in rows]


def wrong_initiations():
    destination, key = destination_block("192.0.2.9", 4500), bytes(range(16))
    share, rows = public(bytes(range(32))), []
    good = grant_header(SIPHASH, PORT, 7, 32)

    def add(name, outcome, grant=good, destination=destination, key=key, cut=None, **fields):
        made = initiation(grant, key, destination, fields.pop("index", 9), share, **fields)
        rows.append(dict(name=name, outcome=outcome, address="192.0.2.9", port=4500, key=bytes(range(16)).hex(),
                         initiation=made[:cut].hex()))

    add("right", "right")
    for cut in (0, 1, 16, 63, 79):
        add(f"cut to {cut} bytes", "malformed", cut=cut)
    add("version 2", "malformed", version=2)
    add("an unknown flag", "malformed", flags=3)
    add("no suite", "malformed", suites=0, fast=0)
    add("only suites that are not there yet", "right", suites=0x80, fast=0x80)
    add("helped with a suite that it cannot open", "malformed", suites=1, fast=2)
    add("index 0", "malformed", index=0)
    add("a reserved byte", "malformed", zero=1)
    add("a response's type", "malformed", kind=RESPONSE)
    add("a bearer's grant", "malformed", grant=grant_header(SIPHASH, PORT | 16, 7, 32))
    add("a grant that admits inside a tunnel only", "malformed", grant=grant_header(SIPHASH, PORT | 64, 7, 32))
    add("a grant of the other family", "malformed", grant=grant_header(SIPHASH, PORT | IPV6, 7, 32))
    add("a prefix that is too long", "malformed", grant=grant_header(SIPHASH, PORT, 7, 33))
    add("a grant of another version", "malformed", grant=grant_header(SIPHASH, PORT, 7, 32, version=2))
    add("a grant's suite that is none", "unknown_suite", grant=grant_header(4, PORT, 7, 32), tag=bytes(16))
    add("a wrong tag", "bad_tag", tag=bytes(16))
    add("another grant's key", "bad_tag", key=bytes(16))
    add("to another port", "bad_tag", destination=destination_block("192.0.2.9", 4501))
    add("to another address", "bad_tag", destination=destination_block("192.0.2.8", 4500))
    add("over TCP", "bad_tag", destination=destination_block("192.0.2.9", 4500, protocol=6))
    return rows


def wrong_controls():
    share = bytes(range(32))
    rows = [
        ("kind 0", bytes([0, 1, 0, 0])), ("kind 5", bytes([5, 1, 0, 0])),
        ("a long close", bytes([4, 1, 0, 0, 0])), ("a reserved byte of close", bytes([4, 1, 0, 1])),
        ("a short ping", bytes([2, 0, 0, 0]) + bytes(7)), ("a long pong", bytes([3, 0, 0, 0]) + bytes(9)),
        ("a reserved byte of ping", bytes([2, 0, 1, 0]) + bytes(8)), ("a flag of rekey", rekey(2, 7, share, have=2)),
        ("a reserved byte of rekey", rekey(2, 7, share, zero=1)), ("rekey to index 0", rekey(2, 0, share)),
        ("rekey to phase 0", rekey(0, 7, share)), ("a short rekey", rekey(2, 7, share)[:-1]),
        ("a long rekey", rekey(2, 7, share) + b"\0"), ("three bytes", bytes([4, 1, 0])), ("nothing", b""),
    ]
    return [dict(name=name, control=control.hex()) for name, control in rows]


def main():
    handshakes = [
        handshake("siphash, IPv4", SIPHASH, "192.0.2.9", 4500, True, 0),
        handshake("aes-cmac, IPv6", AES_CMAC, "2001:db8::9", 65535, True, 1),
        handshake("without forward secrecy", SIPHASH, "192.0.2.9", 4500, False, 2),
    ]
    out = dict(about="Vectors and cases for docs/wire.md §9, made by seal.py.", handshakes=handshakes,
               wrong_records=wrong_records(), wrong_initiations=wrong_initiations(), wrong_controls=wrong_controls())
    write("seal.json", out)
    print(f"seal.json: " + ", ".join(f"{len(rows)} {name}" for name, rows in list(out.items())[1:]))


main()
