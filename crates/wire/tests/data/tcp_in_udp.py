#!/usr/bin/env python3
"""Test vectors of the carrier `tcp_in_udp` (wire.md 4.8): segments, and the datagrams as which they travel. Writes
tcp_in_udp.json beside this script.

No code of the project is used: headers and checksums are made here, from RFC 768, 791, 8200 and 9293. Each datagram's
checksum is computed from all its bytes, and not from that of the segment.
"""
import ipaddress
import json
import pathlib
import struct

LINUX = bytes.fromhex("020405b40402080a000000010000000001030307")
URG = 0x20


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(source, destination, protocol, transport, ip_options=b""):
    """Returns an Ethernet frame with this transport header and payload, and with the checksum at its place."""
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    ends, at = source.packed + destination.packed, 16 if protocol == 6 else 6
    length = len(transport)
    pseudo = ends + (struct.pack(">BBH", 0, protocol, length) if source.version == 4 else struct.pack(">II", length, protocol))
    # A checksum of zero says that there is none (RFC 768).
    value = checksum(pseudo + transport) or (0xFFFF if protocol == 17 else 0)
    transport = transport[:at] + struct.pack(">H", value) + transport[at + 2 :]
    if source.version == 4:
        words = 5 + len(ip_options) // 4
        ip = struct.pack(">BBHHHBBH", 0x40 | words, 0, 4 * words + length, 7, 0x4000, 64, protocol, 0) + ends + ip_options
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    else:
        ip = struct.pack(">IHBB", 6 << 28, length, protocol, 64) + ends
    link = bytes.fromhex("020000000002020000000001") + (b"\x08\x00" if source.version == 4 else b"\x86\xdd")
    return link + ip + transport


def segment(ends, flags, options=b"", payload=b"", urgent=0, sequence=0x01020304, acknowledgement=0xA1A2A3A4):
    offset = (20 + len(options)) // 4 << 4
    header = struct.pack(">HHIIBBHHH", 40000, 22, sequence, acknowledgement, offset, flags, 64240, 0, urgent)
    return frame(*ends, 6, header + options + payload)


def datagram(ends, flags, options=b"", payload=b"", offset=None, length=None, ip_options=b""):
    offset = (20 + len(options)) // 4 << 4 if offset is None else offset
    whole = 20 + len(options) + len(payload)
    header = struct.pack(">HHHH", 40000, 22, whole if length is None else length, 0)
    header += struct.pack(">BBHII", offset, flags, 64240, 0x01020304, 0xA1A2A3A4)
    return frame(*ends, 17, header + options + payload, ip_options)


def zero_sum(ends):
    """Returns two bytes of payload with which the datagram's checksum would be zero."""
    without = datagram(ends, 16, payload=b"\0\0")
    return without[14 + (20 if len(ends[0]) < 15 and "." in ends[0] else 40) + 6 :][:2]


def rows():
    block = b"VSU1" + bytes(range(0x40, 0x40 + 36))
    for family, ends in (("ipv4", ("192.0.2.7", "203.0.113.10")), ("ipv6", ("2001:db8::7", "2001:db8:1::10"))):
        for name, flags, options, payload in (
            ("a SYN with a block", 2, LINUX, block),
            ("a SYN with data and a block", 2, LINUX, b"GET /" + block),
            ("a SYN without options", 2, b"", block),
            ("an answer", 18, LINUX, b""),
            ("an acknowledgement", 16, b"", b""),
            ("data", 24, b"\1\1\x08\x0a" + bytes(8), b"SSH-2.0-OpenSSH\r\n"),
            ("an odd number of bytes", 24, b"", b"odd"),
            ("the longest header", 16, b"\1" * 40, b"x"),
            ("the end", 17, b"", b""),
            ("a reset", 4, b"", b""),
            ("a checksum of zero", 16, b"", zero_sum(ends)),
        ):
            yield {
                "name": f"{family}, {name}",
                "segment": segment(ends, flags, options, payload).hex(),
                "datagram": datagram(ends, flags, options, payload).hex(),
                "back": segment(ends, flags, options, payload).hex(),
                "block": payload.endswith(block),
            }
        yield {
            "name": f"{family}, an urgent pointer is lost",
            "segment": segment(ends, 24 | URG, b"", b"data", 4).hex(),
            "datagram": datagram(ends, 24, b"", b"data").hex(),
            "back": segment(ends, 24, b"", b"data").hex(),
            "block": False,
        }
        shorter = datagram(ends, 16, payload=b"data", length=22)
        none = datagram(ends, 16, payload=b"data")
        at = len(none) - 24 + 6
        yield {"name": f"{family}, the urgent flag", "datagram": datagram(ends, 16 | URG).hex()}
        yield {"name": f"{family}, bytes behind the datagram", "datagram": shorter.hex()}
        yield {"name": f"{family}, no checksum", "datagram": (none[:at] + b"\0\0" + none[at + 2 :]).hex()}
        yield {"name": f"{family}, a short header", "datagram": datagram(ends, 16, offset=0x40).hex()}
        yield {"name": f"{family}, a header beyond the end", "datagram": datagram(ends, 16, offset=0x60).hex()}
        if family == "ipv4":
            yield {"name": f"{family}, options of IP", "datagram": datagram(ends, 16, ip_options=b"\1\1\1\0").hex()}


path = pathlib.Path(__file__).with_suffix(".json")
text = ",\n  ".join(json.dumps(row) for row in rows())
path.write_text('{\n "frames": [\n  ' + text + "\n ]\n}\n")
