"""Segments, proofs and frames of docs/wire.md chapter 8, as proofs.py needs them, without any code of the project."""
import ipaddress
import struct

from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vectors import siphash128

AES_CMAC, SIPHASH = 2, 3
PORT, RETURN, REPLY, SINGLE, UNDERLAY6, IPV6, AUTHORITY6, ROUTED = 1, 2, 4, 8, 16, 32, 64, 128
ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
NOW, EPOCH_LENGTH, MAX_LIFETIME = 1_800_000_000, 3600, 3600
VERIFIERS = ["sending-edge", "receiving-edge", "svtep-1"]
MASTER = bytes(range(32))
OTHER_MASTER = bytes(range(100, 132))


def mac(suite, key, data):
    if suite == SIPHASH:
        return siphash128(key[:16], data)
    cmac = CMAC(AES(key[16:]))
    cmac.update(data)
    return cmac.finalize()


def packed(address):
    return ipaddress.ip_address(address).packed


def proof_key(master, verifier, authority, epoch):
    whole = packed(authority) if ":" in authority else bytes(10) + b"\xff\xff" + packed(authority)
    info = verifier.encode() + b"\0" + whole + struct.pack(">Q", epoch)
    return HKDF(algorithm=SHA256(), length=32, salt=b"vouchsafe proof key v1", info=info).derive(master)


def ones(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(word for (word,) in struct.iter_unpack(">H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ip(source, destination, protocol, payload, options=b"", fragment=0, extensions=()):
    """Builds an IP packet; `extensions` are (number, bytes of the header after its first)."""
    source, destination = packed(source), packed(destination)
    if len(source) == 4:
        assert not extensions
        length = 20 + len(options) + len(payload)
        head = struct.pack(">BBHHHBBH", 0x40 | (20 + len(options)) // 4, 0, length, 7, fragment, 64, protocol, 0)
        head += source + destination + options
        return head[:10] + struct.pack(">H", ~ones(head) & 0xFFFF) + head[12:] + payload
    assert not options and not fragment
    numbers = [number for number, _ in extensions] + [protocol]
    chain = b"".join(bytes([after]) + rest for (_, rest), after in zip(extensions, numbers[1:]))
    head = struct.pack(">IHBB", 6 << 28, len(chain) + len(payload), numbers[0], 64)
    return head + source + destination + chain + payload


def udp(source, destination, ports, payload, checksum="none", length=None):
    length = length if length is not None else 8 + len(payload)
    head = struct.pack(">HHHH", *ports, length, 0)
    pseudo = packed(source) + packed(destination) + struct.pack(">II", length, UDP)
    field = 0
    if checksum == "whole":
        field = ~ones(pseudo + head + payload) & 0xFFFF or 0xFFFF
    elif checksum == "partial":
        field = ones(pseudo)
    elif checksum == "wrong":
        field = (~ones(pseudo + head + payload) & 0xFFFF) ^ 0x5A5A
    return head[:6] + struct.pack(">H", field) + payload


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


class Packet:
    """A packet with proofs; every part of the packet can be changed."""

    def __init__(self, outer=4, inner=4, authority=4, **change):
        self.sending, self.receiving = [("192.0.2.1", "192.0.2.2"), ("2001:db8:1::1", "2001:db8:1::2")][outer == 6]
        self.sender, self.receiver = [("10.0.0.7", "10.0.0.9"), ("fd00::7", "fd00::9")][inner == 6]
        self.authority = ["198.51.100.1", "2001:db8:a::1"][authority == 6]
        self.master, self.path = MASTER, list(VERIFIERS)
        self.suite, self.pointer, self.vni = SIPHASH, 0, 0xABCDE1
        self.flags = PORT | (outer == 6) * UNDERLAY6 | (inner == 6) * IPV6 | (authority == 6) * AUTHORITY6
        self.protocol, self.port, self.sender_port, self.interface = TCP, 22, 0, 0x0102
        self.expires, self.epoch = NOW + 300, None
        self.ports, self.payload = (40000, 22), b"sixteen of them."
        # Parts of the packet that the proofs do not cover.
        self.link, self.inner_options, self.inner_fragment, self.inner_extensions = 0, b"", 0, ()
        self.inner_tag, self.inner_type, self.inner_transport, self.trailer = b"", None, None, b""
        self.checksum, self.udp_length, self.outer_port, self.source_port = "none", None, 6081, 50000
        self.tags, self.options, self.fragment, self.extensions, self.padding = [], b"", 0, (), b""
        self.geneve_version, self.geneve_flags, self.geneve_type, self.vni_reserved = 0, 0x40, None, 0
        self.option_class, self.option_type, self.option_reserved, self.zero = 0xFF53, 0x81, 0, 0
        self.count = None  # N, if it is not the number of proofs
        self.extra_option, self.proofs_sent, self.data_change, self.cut = b"", None, {}, None
        # The addresses that a fixed path leads through, and deviations in the routing header and the packet.
        self.hops, self.left, self.to, self.header_change, self.header_more = None, None, None, {}, b""
        self.__dict__.update(change)

    def but(self, **change):
        """Returns a changed packet with the proofs of the original: what an attacker can make of it."""
        other = Packet()
        other.__dict__.update(self.__dict__)
        if other.proofs_sent is None:
            other.proofs_sent = self.proofs()
        other.__dict__.update(change)
        return other

    def made(self, **change):
        """Returns a changed packet with proofs for the change: what the authority would have issued."""
        other = Packet()
        other.__dict__.update(self.__dict__)
        other.__dict__.update(change)
        return other

    def epoch_number(self):
        return NOW // EPOCH_LENGTH if self.epoch is None else self.epoch

    def head(self, pointer, count):
        return struct.pack(">BBBBIHHHH", self.suite << 6 | count << 3 | pointer, self.flags, self.protocol,
                           self.epoch_number() & 0xFF, self.expires, self.interface, self.port, self.sender_port,
                           self.zero)

    def message(self, place):
        head = bytearray(self.head(place, len(self.path)))
        vni = struct.pack(">I", self.vni)[1:]
        head[3], head[14], head[15] = vni
        ends = (self.sending, *(self.hops or [self.receiving])[::-1], self.sender, self.receiver)
        return bytes(head) + b"".join(packed(end) for end in ends)

    def proofs(self):
        if self.proofs_sent is not None:
            return self.proofs_sent
        proofs = [mac(self.suite, self.key(place), self.message(place)) for place in range(len(self.path))]
        if self.hops:
            # The proofs behind the pointer's are closed, each by the verifier before it.
            for place in range(self.pointer + 1, len(proofs)):
                proofs[place] = xor(proofs[place], self.lock(place - 1))
        return proofs

    def key(self, place):
        return proof_key(self.master, self.path[place], self.authority, self.epoch_number())

    def lock(self, place):
        message = bytearray(self.message(place))
        message[0] |= 7
        return mac(self.suite, self.key(place), bytes(message))

    def inner(self):
        transport = self.inner_transport
        if transport is None:
            if self.protocol == UDP or self.protocol == 0:
                transport = udp(self.sender, self.receiver, self.ports, self.payload, "whole")
            else:
                transport = struct.pack(">HHIIBBHHH", *self.ports, 1, 0, 0x50, 2, 64000, 0, 0) + self.payload
        protocol = self.protocol or UDP
        inner = ip(self.sender, self.receiver, protocol, transport, self.inner_options, self.inner_fragment,
                   self.inner_extensions)
        if self.link:
            kind = self.inner_type or (0x86DD if ":" in self.sender else 0x0800)
            inner = b"\x02\0\0\0\0\x09\x02\0\0\0\0\x07" + self.inner_tag + struct.pack(">H", kind) + inner
        return inner

    def option(self):
        proofs = self.proofs()
        data = bytearray(self.head(self.pointer, len(proofs) if self.count is None else self.count))
        data += packed(self.authority) + b"".join(proofs)
        for at, value in self.data_change.items():
            data[at] ^= value
        words = len(data) // 4
        return struct.pack(">HBB", self.option_class, self.option_type, self.option_reserved | words) + data

    def geneve(self):
        options = self.option() + self.extra_option
        kind = self.geneve_type
        if kind is None:
            kind = 0x6558 if self.link else 0x86DD if ":" in self.sender else 0x0800
        head = struct.pack(">BBHI", self.geneve_version << 6 | len(options) // 4, self.geneve_flags, kind,
                           self.vni << 8 | self.vni_reserved)
        whole = head + options + self.inner() + self.trailer
        return whole if self.cut is None else whole[:self.cut]

    def frame(self):
        datagram = udp(self.sending, self.receiving, (self.source_port, self.outer_port), self.geneve(), self.checksum,
                       self.udp_length)
        to, extensions = self.to or self.receiving, self.extensions
        if self.hops:
            left = len(self.hops) - 1 - self.pointer if self.left is None else self.left
            header = bytearray(struct.pack(">BBBBBH", 2 * len(self.hops) + len(self.header_more) // 8, 4, left,
                                           len(self.hops) - 1, 0, 0))
            header += b"".join(packed(hop) for hop in self.hops[::-1]) + self.header_more
            for at, value in self.header_change.items():
                header[at - 1] ^= value
            extensions = [*extensions, (43, bytes(header))]
            to = self.to or self.hops[self.pointer]
        packet = ip(self.sending, to, UDP, datagram, self.options, self.fragment, extensions)
        kind = 0x86DD if ":" in self.sending else 0x0800
        link = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01" + b"".join(struct.pack(">HH", *tag) for tag in self.tags)
        return link + struct.pack(">H", kind) + packet + self.padding

    def onward(self):
        """Returns the packet as the verifier forwards it. The verifier does not change the routing header."""
        if not self.hops:
            return self.but(pointer=self.pointer + 1)
        proofs, after = self.proofs(), self.pointer + 1
        if after < len(proofs):
            proofs[after] = xor(proofs[after], self.lock(self.pointer))
        left, to = self.left, self.to or self.hops[self.pointer]
        left = len(self.hops) - 1 - self.pointer if left is None else left
        return self.but(pointer=after, proofs_sent=proofs, left=left, to=to)
