#!/usr/bin/env python3
"""Test vectors of the carrier `fast_open` (wire.md 4.7): SYNs before and after the sender has added the option and the
block. Writes fast_open.json beside this script.

No code of the project is used: headers and checksums are made here, from RFC 791, 8200, 9293 and 7413.
"""
import ipaddress
import json
import pathlib
import struct

LINUX = bytes.fromhex("020405b40402080a00000001000000000103 0307")


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(source, destination, options, payload, flags=2):
    """Returns an Ethernet frame with a TCP segment."""
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    length = 20 + len(options)
    tcp = struct.pack(">HHIIBBHHH", 40000, 22, 0x01020304, 0, length // 4 << 4, flags, 64240, 0, 0) + options + payload
    ends = source.packed + destination.packed
    pseudo = ends + (struct.pack(">BBH", 0, 6, len(tcp)) if source.version == 4 else struct.pack(">II", len(tcp), 6))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp)) + tcp[18:]
    if source.version == 4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 7, 0x4000, 64, 6, 0) + ends
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    else:
        ip = struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + ends
    link = bytes.fromhex("020000000002020000000001") + (b"\x08\x00" if source.version == 4 else b"\x86\xdd")
    return link + ip + tcp


def rows():
    token = bytes(range(0x40, 0x40 + 36))
    option = bytes([34, 10]) + token[24:32] + bytes([1, 1])
    block = b"VSO1" + token
    for family, ends in (("ipv4", ("192.0.2.7", "203.0.113.10")), ("ipv6", ("2001:db8::7", "2001:db8:1::10"))):
        for name, options in (
            ("options of Linux", LINUX),
            ("no options", b""),
            ("the longest header", b"\1" * 28),
            ("a request for a cookie", LINUX + bytes([34, 2, 1, 1])),
        ):
            yield {
                "name": f"{family}, {name}",
                "token": token.hex(),
                "plain": frame(*ends, options, b"").hex(),
                "carrying": frame(*ends, options + option, block).hex(),
            }
        for name, carrying in (
            ("no option", frame(*ends, LINUX, block)),
            ("the option is not the last", frame(*ends, LINUX + option[:10] + b"\1" * 6, block)),
            ("the option is blanked", frame(*ends, LINUX + b"\1" * 12, block)),
            ("data behind the block", frame(*ends, LINUX + option, block + b"x")),
            ("data before the block", frame(*ends, LINUX + option, b"x" + block)),
            ("a SYN with ACK", frame(*ends, LINUX + option, block, 18)),
        ):
            yield {"name": f"{family}, {name}", "carrying": carrying.hex()}


path = pathlib.Path(__file__).with_suffix(".json")
text = ",\n  ".join(json.dumps(row) for row in rows())
path.write_text('{\n "frames": [\n  ' + text + "\n ]\n}\n")
