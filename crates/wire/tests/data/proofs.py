#!/usr/bin/env python3
"""Writes proofs.json: vectors and the table of cases for docs/wire.md chapter 8, without any code of the project.

Needs the `cryptography` package. Packets and proofs are made in proof_packets.py. Byte strings are hex. A row of `packets` is a
sequence of steps, each of which is a frame with its outcome (`proved`, `not_ours` or a drop reason) and, if it passes, the bytes
that change ([offset, value]); seconds that pass (`wait`); or consent that is withdrawn. `of` is the index of the verifier in
`verifiers`.
"""
import struct

from proof_packets import (
    AES_CMAC, AUTHORITY6, EPOCH_LENGTH, ICMP, ICMPV6, IPV6, MASTER, MAX_LIFETIME, NOW, OTHER_MASTER, PORT, Packet, REPLY,
    RETURN, ROUTED, SINGLE, SIPHASH, TCP, UDP, UNDERLAY6, VERIFIERS, ip, packed, proof_key, udp,
)
from vectors import write

ROWS = []


def row(clause, name, *steps, of=0):
    ROWS.append(dict(name=name, clause=clause, of=of, steps=list(steps)))


def passes(before, after):
    changes = [[at, new] for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return dict(frame=before.hex(), outcome="proved", changes=changes)


def proved(packet):
    return passes(packet.frame(), packet.onward().frame())


def judged(outcome, packet):
    frame = packet if isinstance(packet, bytes) else packet.frame()
    return dict(frame=frame.hex(), outcome=outcome)


def valid(outer, inner, authority, name):
    base = Packet(outer, inner, authority)
    for suite, of in (("siphash", SIPHASH), ("aes-cmac", AES_CMAC)):
        row("§8.6", f"{name}: {suite}", proved(base.made(suite=of)))
    for place, verifier in enumerate(VERIFIERS):
        row("§8.9", f"{name}: at its place, {verifier}", proved(base.made(pointer=place)), of=place)
    row("§8.5", f"{name}: for all services", proved(base.made(flags=base.flags & ~PORT, protocol=0, port=0)))
    single = base.made(flags=base.flags | SINGLE, sender_port=40000)
    row("§8.5", f"{name}: for one flow", proved(single))
    row("§8.5", f"{name}: for one flow, used for another", judged("bad_tag", single.but(ports=(40001, 22))))
    row("§8.5", f"{name}: with consent to answers", proved(base.made(flags=base.flags | REPLY)))
    back = base.made(flags=base.flags | RETURN, ports=(22, 40000))
    row("§8.11", f"{name}: an answer", proved(back))
    row("§8.11", f"{name}: a request under an answer's segment", judged("bad_tag", back.but(ports=(40000, 22))))
    both = single.made(flags=single.flags | RETURN, ports=(22, 40000))
    row("§8.11", f"{name}: an answer to one flow", proved(both))
    row("§8.11", f"{name}: the same to another flow", judged("bad_tag", both.but(ports=(22, 40001))))
    row("§8.7", f"{name}: inside Ethernet", proved(base.made(link=1)))
    row("§8.9", f"{name}: udp checksum", proved(base.made(checksum="whole")))
    # A sum that the network card will complete stays as it is: the pointer moves, the checksum field does not.
    row("§8.9", f"{name}: udp checksum left to the network card", proved(base.made(checksum="partial")))
    row("§8.3", f"{name}: behind two VLAN tags", proved(base.made(tags=[(0x88A8, 5), (0x8100, 6)])))
    row("§8.3", f"{name}: link padding behind it", proved(base.made(padding=b"\xee" * 7)))
    row("§8.7", f"{name}: bytes behind the inner packet", proved(base.made(trailer=b"\0" * 9)))
    icmp = ICMPV6 if inner == 6 else ICMP
    row("§8.8", f"{name}: a protocol without ports",
        proved(base.made(protocol=icmp, port=0, inner_transport=bytes([8, 0, 0, 0, 0, 1, 0, 1]))))
    for count in (1, 2, 5):
        row("§8.4", f"{name}: {count} proofs", proved(base.made(path=(VERIFIERS * 2)[:count])))


def times(base, name):
    row("§8.8", f"{name}: in its last second", proved(base.made(expires=NOW + 1)))
    row("§8.8", f"{name}: expires this second", judged("expired", base.made(expires=NOW)))
    row("§8.8", f"{name}: expired long ago", judged("expired", base.made(expires=1)))
    row("§8.8", f"{name}: of the longest lifetime", proved(base.made(expires=NOW + MAX_LIFETIME)))
    row("§8.8", f"{name}: lives too long", judged("lifetime_too_long", base.made(expires=NOW + MAX_LIFETIME + 1)))
    row("§8.8", f"{name}: lives for ever", judged("lifetime_too_long", base.made(expires=0xFFFFFFFF)))
    row("§8.8", f"{name}: seen, then replayed after its end", proved(base), proved(base), dict(wait=299), proved(base),
        dict(wait=1), judged("expired", base))
    row("§8.8", f"{name}: expiry put off", judged("bad_tag", base.but(expires=NOW + 600)))
    epoch = NOW // EPOCH_LENGTH
    row("§2.3", f"{name}: of the previous epoch", proved(base.made(epoch=epoch - 1)))
    row("§2.3", f"{name}: of the next epoch", proved(base.made(epoch=epoch + 1)))
    row("§2.3", f"{name}: two epochs old", judged("unknown_epoch", base.made(epoch=epoch - 2)))
    row("§2.3", f"{name}: two epochs ahead", judged("unknown_epoch", base.made(epoch=epoch + 2)))
    row("§2.3", f"{name}: another epoch named than its key's", judged("bad_tag", base.but(epoch=epoch + 1)))
    late = base.made(epoch=epoch - 1, expires=NOW + 3600)
    row("§8.9.2", f"{name}: seen, then its epoch ends before it does", proved(late), proved(late),
        dict(wait=EPOCH_LENGTH - NOW % EPOCH_LENGTH - 1), proved(late), dict(wait=1), judged("unknown_epoch", late))


def stolen(base, name, elsewhere):
    v6 = ":" in base.sender
    other = lambda v4, v6_address, is6: v6_address if is6 else v4
    bad = lambda clause, what, packet, of=0: row(clause, f"{name}: {what}", judged("bad_tag", packet), of=of)
    bad("§8.6", "spoofed: another sender", base.but(sender=other("10.0.0.8", "fd00::8", v6)))
    bad("§8.6", "another receiver", base.but(receiver=other("10.0.0.10", "fd00::10", v6)))
    outer6 = ":" in base.sending
    bad("§8.6", "from another sending endpoint", base.but(sending=other("192.0.2.3", "2001:db8:1::3", outer6)))
    bad("§8.6", "to another receiving endpoint", base.but(receiving=elsewhere))
    bad("§8.6", "in another virtual network", base.but(vni=0xABCDE2))
    bad("§8.6", "in a virtual network whose first byte differs", base.but(vni=0xBBCDE1))
    bad("§8.6", "sender and receiver change places", base.but(sender=base.receiver, receiver=base.sender))
    bad("§8.6", "to another interface", base.but(interface=0x0103))
    bad("§8.8", "to another port", base.but(ports=(40000, 23)))
    bad("§8.6", "to another port, and the segment says so", base.but(ports=(40000, 23), port=23))
    bad("§8.8", "by another protocol", base.but(inner_transport=udp(base.sender, base.receiver, (40000, 22), b"")
                                              ).but(protocol=UDP))
    bad("§8.8", "an application's segment for another protocol",
        InnerProtocol.of(base, UDP, udp(base.sender, base.receiver, (40000, 22), b"")))
    bad("§8.6", "made wider: all services", base.but(flags=base.flags & ~PORT, protocol=0, port=0))
    bad("§8.6", "consent to answers added", base.but(flags=base.flags | REPLY))
    bad("§8.6", "made an answer's", base.but(flags=base.flags | RETURN, ports=(22, 40000)))
    bad("§8.6", "of another suite", base.but(suite=AES_CMAC))
    bad("§8.2", "of another authority under this one's name", base.made(master=OTHER_MASTER))
    for bit in (0, 5, 64, 127):
        first = bytearray(base.proofs()[0])
        first[bit // 8] ^= 1 << bit % 8
        bad("§8.6", f"bit {bit} of the proof flipped", base.but(proofs_sent=[bytes(first)] + base.proofs()[1:]))
    bad("§8.6", "no proof at all but zeros", base.but(proofs_sent=[bytes(16)] * 3))
    # Proofs of one verifier shown to another.
    proofs = base.proofs()
    bad("§8.9.1", "the first verifier's proof shown to the second", base.but(pointer=1, proofs_sent=[proofs[0]] * 3), of=1)
    bad("§8.9.1", "pointer moved back at the second verifier", base.but(pointer=0), of=1)
    bad("§8.9.1", "pointer moved ahead to spare the first", base.but(pointer=1), of=0)
    bad("§8.9.1", "pointer left by a verifier that checks nothing", base.but(pointer=0), of=2)
    bad("§8.9.1", "forged behind a verifier that passes everything",
        base.but(pointer=1, proofs_sent=[proofs[0], bytes(16), bytes(16)]), of=1)
    bad("§8.9.1", "the right proof at a wrong place", base.but(pointer=1, proofs_sent=[proofs[0], proofs[0], proofs[2]]))
    twice = base.made(path=[VERIFIERS[0], VERIFIERS[0]])
    bad("§8.9.1", "one verifier twice on the path, its first proof twice",
        twice.but(pointer=1, proofs_sent=[twice.proofs()[0]] * 2))
    bad("§8.4", "a proof less, and N says so", base.but(proofs_sent=proofs[:2]))
    bad("§8.4", "a proof more, and N says so", base.but(proofs_sent=proofs + proofs[:1]))
    row("§8.8", f"{name}: an authority nobody knows", judged("unknown_epoch", base.made(
        authority=other("198.51.100.77", "2001:db8:a::77", ":" in base.authority))))
    row("§8.8", f"{name}: an authority that is known, with another's proofs",
        judged("bad_tag", base.but(authority=other("198.51.100.2", "2001:db8:a::2", ":" in base.authority))))
    row("§8.8", f"{name}: another authority", proved(base.made(
        master=OTHER_MASTER, authority=other("198.51.100.2", "2001:db8:a::2", ":" in base.authority))))
    # A captured proof is worthless with another packet.
    row("§8.9.2", f"{name}: seen, then stolen", proved(base), proved(base),
        judged("bad_tag", base.but(sender=other("10.0.0.8", "fd00::8", v6))), judged("bad_tag", base.but(vni=1)), proved(base))


class InnerProtocol(Packet):
    """A packet with another inner protocol than its segment names."""

    @staticmethod
    def of(base, protocol, transport):
        other = InnerProtocol()
        other.__dict__.update(base.but().__dict__)
        other.carried, other.inner_transport = protocol, transport
        return other

    def inner(self):
        return ip(self.sender, self.receiver, self.carried, self.inner_transport)


def forms(base, name):
    bad = lambda clause, what, packet: row(clause, f"{name}: {what}", judged("malformed", packet))
    bad("§8.4", "no proofs", base.but(proofs_sent=[], count=0))
    bad("§8.4", "N is zero, the proofs are there", base.but(count=0))
    bad("§8.4", "N is one too few for the option", base.but(count=2))
    bad("§8.4", "N is one too many for the option", base.but(count=4))
    bad("§8.4", "six proofs", base.made(path=(VERIFIERS * 2)[:6]) if base.authority.count(":") == 0 else base.but(count=6))
    bad("§8.4", "N is seven", base.but(count=7))
    bad("§8.4", "pointer at N", base.but(pointer=3))
    bad("§8.4", "pointer beyond N", base.but(pointer=7))
    bad("§8.5", "reserved flag", base.made(flags=base.flags | 0x80))
    bad("§8.5", "both an answer and consent to one", base.made(flags=base.flags | REPLY | RETURN))
    bad("§8.5", "one flow of no service", base.made(flags=base.flags & ~PORT | SINGLE, protocol=0, port=0, sender_port=9))
    bad("§8.5", "a sender's port without SINGLE", base.made(sender_port=40000))
    bad("§8.5", "a port without PORT", base.made(flags=base.flags & ~PORT, protocol=0))
    bad("§8.5", "a protocol without PORT", base.made(flags=base.flags & ~PORT, port=0))
    bad("§8.5", "the other family's flag, inside", base.made(flags=base.flags ^ IPV6))
    bad("§8.5", "the other family's flag, outside", base.made(flags=base.flags ^ UNDERLAY6))
    bad("§8.5", "the other family's flag, authority", base.made(flags=base.flags ^ AUTHORITY6))
    bad("§8.4", "first byte behind the sender's port not zero", base.but(data_change={14: 1}))
    bad("§8.4", "second byte behind the sender's port not zero", base.but(data_change={15: 1}))
    bad("§8.4", "reserved bits of the option", base.made(option_reserved=0x20))
    bad("§8.3", "version 1 of Geneve", base.made(geneve_version=1))
    row("§8.15.2", f"{name}: a control packet", proved(base.made(geneve_flags=0xC0)))
    bad("§8.3", "a control packet whose critical option is not announced", base.made(geneve_flags=0x80))
    bad("§8.3", "a critical option that is not announced", base.made(geneve_flags=0))
    bad("§8.3", "reserved bits of Geneve", base.made(geneve_flags=0x41))
    bad("§8.3", "reserved bits of a control packet", base.made(geneve_flags=0xC1))
    bad("§8.3", "reserved byte behind the VNI", base.made(vni_reserved=1))
    bad("§8.3", "an unknown protocol type", base.made(geneve_type=0x0806))
    bad("§8.3", "the other family's protocol type", base.made(geneve_type=0x0800 if base.flags & IPV6 else 0x86DD))
    bad("§8.3", "an option behind ours", base.made(extra_option=bytes([1, 2, 3, 0])))
    bad("§8.3", "our option twice", base.made(extra_option=base.option()))
    no_option = base.but(option_class=0x0102)
    row("§8.8", f"{name}: another option first", judged("no_token", no_option))
    row("§8.8", f"{name}: our option's type without the critical bit", judged("no_token", base.made(option_type=1)))
    row("§8.8", f"{name}: no option", judged("no_token", WithoutOption.of(base)))
    for suite in (0, 1):
        row("§1.1", f"{name}: suite {suite}", judged("unknown_suite", base.but(suite=suite)))
    # Packets cut short, at the edges of every part.
    option = 8 + len(base.option())
    inner = 40 if base.flags & IPV6 else 20
    for at in (0, 7, 8, 11, 12, 13, 27, 31, 32, option - 17, option - 16, option - 1, option, option + inner - 1,
               option + inner, option + inner + 1, option + inner + 19):
        bad("§8.3", f"ends behind {at} bytes of Geneve", base.but(cut=at))
    bad("§8.3", "a UDP length that is too short for it", base.made(udp_length=8))
    bad("§8.3", "a UDP length shorter than the IP packet", base.made(udp_length=8 + len(base.geneve()) - 1))
    bad("§8.3", "a UDP length beyond the IP packet", base.made(udp_length=8 + len(base.geneve()) + 1))
    bad("§8.7", "a VLAN tag inside", base.made(link=1, inner_tag=b"\x81\0\0\x05"))
    bad("§8.7", "ARP inside Ethernet", base.made(link=1, inner_type=0x0806))
    bad("§8.7", "Ethernet whose type is the other family's",
        base.made(link=1, inner_type=0x0800 if base.flags & IPV6 else 0x86DD))


class WithoutOption(Packet):
    @staticmethod
    def of(base):
        other = WithoutOption()
        other.__dict__.update(base.__dict__)
        return other

    def geneve(self):
        return struct.pack(">BBHI", 0, 0, 0x86DD if ":" in self.sender else 0x0800, self.vni << 8) + self.inner()


def inside(name4, name6):
    base = Packet()
    bad = lambda what, packet: row("§8.7", f"{what}", judged("malformed", packet))
    bad(f"{name4}: options inside", base.made(inner_options=b"\x94\x04\0\0"))
    bad(f"{name4}: a source route inside", base.made(inner_options=bytes([131, 7, 4, 10, 0, 0, 77, 0])))
    row("§8.8", f"{name4}: first fragment inside", proved(base.made(inner_fragment=0x2000)))
    row("§8.8", f"{name4}: later fragment inside, for one service", judged("fragment", base.made(inner_fragment=3)))
    whole = base.made(flags=0, protocol=0, port=0)
    row("§8.8", f"{name4}: later fragment inside, for all services", proved(whole.made(inner_fragment=3)))
    small = whole.made(inner_fragment=0x2000, inner_transport=b"\x9c")
    row("§8.8", f"{name4}: first fragment inside without ports, for all services", proved(small))
    row("§8.8", f"{name4}: first fragment inside without ports, for one service",
        judged("malformed", base.made(inner_fragment=0x2000, inner_transport=b"\x9c\x40\0")))
    base = Packet(4, 6)
    later, first = (44, bytes([0, 0, 8, 0, 0, 0, 7])), (44, bytes([0, 0, 1, 0, 0, 0, 7]))
    alone = (44, bytes([0, 0, 0, 0, 0, 0, 7]))
    row("§8.8", f"{name6}: first fragment inside", proved(base.made(inner_extensions=[first])))
    row("§8.8", f"{name6}: a fragment header around a whole packet", proved(base.made(inner_extensions=[alone])))
    row("§8.8", f"{name6}: later fragment inside, for one service",
        judged("fragment", base.made(inner_extensions=[later])))
    whole = base.made(flags=IPV6, protocol=0, port=0)
    row("§8.8", f"{name6}: later fragment inside, for all services", proved(whole.made(inner_extensions=[later])))
    bad(f"{name6}: two fragment headers inside", base.made(inner_extensions=[first, first]))
    for number, what in ((0, "hop-by-hop"), (43, "routing"), (60, "destination"), (51, "authentication")):
        bad(f"{name6}: {what} header inside", base.made(inner_extensions=[(number, bytes([0, 1, 4, 0, 0, 0, 0]))]))


def outside(name4, name6):
    base = Packet()
    row("§8.8", f"{name4}: another UDP port", judged("not_ours", base.made(outer_port=6082)))
    row("§8.8", f"{name4}: to an endpoint of somebody else's", judged("not_ours", base.made(receiving="192.0.3.1")))
    tcp = ip(base.sending, base.receiving, TCP, struct.pack(">HHIIBBHHH", 5, 6081, 1, 0, 0x50, 2, 9, 0, 0))
    row("§8.8", f"{name4}: TCP to the port", judged("not_ours", base.frame()[:14] + tcp))
    row("§8.8", "no IP", judged("not_ours", base.frame()[:12] + b"\x08\x06" + bytes(28)))
    row("§8.8", f"{name4}: first fragment of an outer packet", judged("fragment", base.made(fragment=0x2000)))
    row("§8.8", f"{name4}: later fragment of an outer packet", judged("fragment", base.made(fragment=5)))
    row("§8.8", f"{name4}: later fragment to somebody else's",
        judged("not_ours", base.made(fragment=5, receiving="192.0.3.1")))
    row("§8.8", f"{name4}: first fragment to another port",
        judged("not_ours", base.made(fragment=0x2000, outer_port=53)))
    row("§8.8", f"{name4}: IP options outside", proved(base.made(options=b"\x94\x04\0\0")))
    row("§8.8", f"{name4}: a source route to an endpoint",
        judged("malformed", base.made(receiving="192.0.3.1", options=bytes([131, 7, 4, 192, 0, 2, 2, 0]))))
    row("§8.8", f"{name4}: three VLAN tags", judged("malformed", base.made(tags=[(0x8100, 1)] * 3)))
    row("§8.8", f"{name4}: the outer packet is cut short", judged("malformed", base.frame()[:-1]))
    row("§8.8", f"{name4}: a wrong UDP checksum stays wrong", proved_wrong(base))
    base = Packet(6, 6, 6)
    row("§8.8", f"{name6}: another UDP port", judged("not_ours", base.made(outer_port=6082)))
    row("§8.8", f"{name6}: to an endpoint of somebody else's",
        judged("not_ours", base.made(receiving="2001:db8:2::1")))
    row("§8.8", f"{name6}: a header of options outside",
        proved(base.made(extensions=[(60, bytes([0, 1, 4, 0, 0, 0, 0]))])))
    row("§8.8", f"{name6}: a fragment of an outer packet",
        judged("fragment", base.made(extensions=[(44, bytes([0, 0, 1, 0, 0, 0, 7]))])))
    row("§8.8", f"{name6}: a later fragment of an outer packet",
        judged("fragment", base.made(extensions=[(44, bytes([0, 0, 8, 0, 0, 0, 7]))])))
    route = bytes([2, 4, 1, 0, 0, 0, 0]) + packed("2001:db8:1::2")
    row("§8.8", f"{name6}: a route to an endpoint",
        judged("malformed", base.made(receiving="2001:db8:2::1", extensions=[(43, route)])))


def proved_wrong(base):
    """Returns a step with a wrong checksum: changing one word of a datagram changes its checksum by the same amount."""
    packet = base.made(checksum="wrong")
    before, after = packet.frame(), bytearray(packet.onward().frame())
    at = 14 + 20
    old, new = (struct.unpack(">H", data[at + 20:at + 22])[0] for data in (before, after))
    field = struct.unpack(">H", before[at + 6:at + 8])[0]
    total = (~field & 0xFFFF) + (~old & 0xFFFF) + new
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    after[at + 6:at + 8] = struct.pack(">H", ~total & 0xFFFF)
    return passes(before, bytes(after))


def withdrawn(base, name):
    word = dict(vni=base.vni, sender=base.sender, receiver=base.receiver, until=NOW + 300)
    later = base.made(expires=NOW + 301)
    row("§8.10", f"{name}: consent withdrawn", proved(base), proved(base), dict(withdraw=word), judged("revoked", base),
        proved(later), judged("revoked", base))
    row("§8.10", f"{name}: consent withdrawn from all senders", proved(base), dict(withdraw=dict(word, sender=None)),
        judged("revoked", base), proved(later))
    row("§8.10", f"{name}: consent withdrawn in another virtual network", proved(base),
        dict(withdraw=dict(word, vni=1)), proved(base))
    row("§8.10", f"{name}: consent withdrawn from another sender", proved(base),
        dict(withdraw=dict(word, sender=base.receiver)), proved(base))
    row("§8.10", f"{name}: another receiver's consent withdrawn", proved(base),
        dict(withdraw=dict(word, receiver=base.sender)), proved(base))
    row("§8.10", f"{name}: a withdrawal of older segments only", dict(withdraw=dict(word, until=NOW + 299)), proved(base))
    row("§8.10", f"{name}: forged and withdrawn is forged", dict(withdraw=word),
        judged("bad_tag", base.but(proofs_sent=[bytes(16)] * 3)))
    back = base.made(flags=base.flags | RETURN, ports=(22, 40000))
    row("§8.10", f"{name}: consent to answers withdrawn", proved(back), dict(withdraw=word), judged("revoked", back))


def order(base, name):
    """Adds rows for the order of checks: a packet that fails two gets the reason of the first."""
    row("§8.8", f"{name}: malformed before suite", judged("malformed", base.but(suite=0, pointer=3)))
    row("§8.8", f"{name}: suite before epoch", judged("unknown_suite", base.but(suite=1, epoch=77)))
    row("§8.8", f"{name}: epoch before expiry", judged("unknown_epoch", base.made(epoch=77, expires=1)))
    row("§8.8", f"{name}: expiry before proof", judged("expired", base.but(expires=1)))
    row("§8.8", f"{name}: lifetime before proof", judged("lifetime_too_long", base.but(expires=NOW + 9999)))


HOPS = ["2001:db8:1::a1", "2001:db8:1::b2", "2001:db8:1::2"]


def routed_packet(inner=4, authority=4, **change):
    base = Packet(6, inner, authority, hops=HOPS)
    return base.made(flags=base.flags | ROUTED, **change)


def routed():
    for inner, authority, name in ((4, 4, "routed, ipv4 inside"), (6, 6, "routed, ipv6 inside")):
        for suite, suite_name in ((SIPHASH, "siphash"), (AES_CMAC, "aes-cmac")):
            base = routed_packet(inner, authority, suite=suite)
            for place, verifier in enumerate(VERIFIERS):
                row("§8.12", f"{name}: {suite_name}, at its place, {verifier}", proved(base.made(pointer=place)), of=place)
            for count in (1, 2, 4, 5):
                path, hops = (VERIFIERS * 2)[:count], [f"2001:db8:1::{at}" for at in range(10, 10 + count)]
                row("§8.12", f"{name}: {suite_name}, {count} hops", proved(base.made(path=path, hops=hops)))
                last = base.made(path=path, hops=hops, pointer=count - 1)
                row("§8.12", f"{name}: {suite_name}, the last of {count} hops", proved(last), of=(count - 1) % 3)
            # A sender that starts behind a verifier, or goes around one, has a proof that only that verifier opens.
            for place in (1, 2):
                row("§8.12.3", f"{name}: {suite_name}, begun at place {place}",
                    judged("bad_tag", base.but(pointer=place)), of=place)
            behind = base.onward()
            around = base.but(pointer=2, proofs_sent=behind.proofs_sent)
            row("§8.12.3", f"{name}: {suite_name}, around the second verifier", judged("bad_tag", around), of=2)
        base = routed_packet(inner, authority)
        bad = lambda what, packet, of=0: row("§8.12.1", f"{name}: {what}", judged("malformed", packet), of=of)
        tag = lambda what, packet, of=0: row("§8.12.2", f"{name}: {what}", judged("bad_tag", packet), of=of)
        a, b, end = HOPS
        tag("two hops swapped", base.but(hops=[a, end, b]))
        tag("the first two swapped", base.but(hops=[b, a, end]))
        tag("another hop in a verifier's place", base.but(hops=[a, "2001:db8:1::99", end]))
        tag("another receiving endpoint", base.but(hops=[a, b, "2001:db8:1::99"]))
        tag("a visited hop changed", base.made(pointer=1).but(hops=["2001:db8:1::99", b, end]), of=1)
        tag("another sending endpoint", base.but(sending="2001:db8:1::98"))
        tag("another flow's lock", base.but(pointer=1, proofs_sent=base.made(port=23, ports=(1, 23)).onward().proofs_sent), of=1)
        tag("without its route", Packet(6, inner, authority).but(flags=base.flags, hops=HOPS))
        bad("a hop left out", base.but(hops=[a, end]))
        bad("a hop more", base.but(hops=[a, b, "2001:db8:1::99", end]))
        bad("segments left of another place", base.but(left=1, to=b))
        bad("segments left, more than there are", base.but(left=3))
        bad("all segments left behind it", base.but(left=0, to=end))
        bad("the pointer of another place", base.but(pointer=1, left=2, to=a), of=1)
        bad("to another endpoint than its hop", base.but(to=b))
        bad("to somebody who is no hop", base.but(to="2001:db8:2::1"))
        bad("the flag without the header", base.but(hops=None, to=a))
        bad("the header without the flag", base.made(flags=base.flags & ~ROUTED))
        bad("its route by another kind of header", base.but(header_change={2: 6}))
        bad("another last entry", base.but(header_change={4: 1}))
        bad("flags in the header", base.but(header_change={5: 8}))
        bad("a tag in the header", base.but(header_change={7: 1}))
        bad("something more in the header", base.but(header_more=bytes([5, 6, 0, 0, 0, 0, 0, 0])))
        bad("sixteen bytes more in the header", base.but(header_more=bytes([5, 14]) + bytes(14)))
        bad("another header before it", base.but(extensions=[(60, bytes([0, 1, 4, 0, 0, 0, 0]))]))
        bad("a UDP checksum", base.but(checksum="whole"))
        bad("a fragment", base.but(extensions=[(44, bytes([0, 0, 1, 0, 0, 0, 7]))]))
        bad("to another port, on its way", base.but(outer_port=6082))
        end_of_it = base.made(pointer=2)
        row("§8.12", f"{name}: to another port, at its end", judged("not_ours", end_of_it.but(outer_port=6082)), of=2)
        plain = Packet(6, inner, authority, hops=HOPS).made(hops=None).but(hops=HOPS, left=0, to=end)
        row("§8.12", f"{name}: a route behind it, not of its segment", proved_plain(plain))
        row("§8.12", f"{name}: expired", judged("expired", base.made(expires=NOW)))
        word = dict(vni=base.vni, sender=base.sender, receiver=base.receiver, until=NOW + 300)
        row("§8.12", f"{name}: consent withdrawn", proved(base), dict(withdraw=word), judged("revoked", base))
        row("§8.15.2", f"{name}: a control packet", proved(base.made(geneve_flags=0xC0)))
        row("§8.12", f"{name}: an answer", proved(base.made(flags=base.flags | RETURN, ports=(22, 40000))))
        row("§8.12", f"{name}: behind a VLAN tag", proved(base.made(tags=[(0x8100, 6)])))
    row("§8.12.1", "the flag over ipv4", judged("malformed", Packet(4, 4).made(flags=PORT | ROUTED)))
    row("§8.12.1", "the flag over ipv6 without a header", judged("malformed", Packet(6, 4).made(flags=PORT | UNDERLAY6 | ROUTED)))


def proved_plain(packet):
    return passes(packet.frame(), packet.but(pointer=packet.pointer + 1, left=packet.left, to=packet.to).frame())


def routes():
    cases = []
    for inner in (4, 6):
        for suite in (AES_CMAC, SIPHASH):
            p = routed_packet(inner, suite=suite)
            cases.append(dict(
                sending=p.sending, hops=p.hops, sender=p.sender, receiver=p.receiver, authority=p.authority,
                master_key=p.master.hex(), path=p.path, suite=suite, flags=p.flags, vni=p.vni, protocol=p.protocol,
                epoch=p.epoch_number(), expires=p.expires, interface=p.interface, port=p.port, sender_port=p.sender_port,
                messages=[p.message(place).hex() for place in range(3)],
                locks=[p.lock(place).hex() for place in range(3)], proofs=[proof.hex() for proof in p.proofs()]))
    return cases


def keys():
    cases = []
    for verifier, authority, epoch in (
        (VERIFIERS[0], "198.51.100.1", 500_000), (VERIFIERS[0], "198.51.100.1", 500_001),
        (VERIFIERS[1], "198.51.100.1", 500_000), (VERIFIERS[0], "198.51.100.2", 500_000),
        (VERIFIERS[0], "2001:db8:a::1", 500_000), ("", "0.0.0.0", 0), ("é" * 32, "::1", 2**64 - 1),
    ):
        key = proof_key(MASTER, verifier, authority, epoch)
        cases.append(dict(master_key=MASTER.hex(), verifier=verifier, authority=authority, epoch=epoch, key=key.hex()))
    return cases


def segments():
    cases = []
    for outer in (4, 6):
        for inner in (4, 6):
            for authority in (4, 6):
                for suite in (AES_CMAC, SIPHASH):
                    p = Packet(outer, inner, authority, suite=suite, flags=0)
                    p.flags = SINGLE | PORT | (outer == 6) * UNDERLAY6 | (inner == 6) * IPV6 | (authority == 6) * AUTHORITY6
                    p.sender_port, p.ports = 40000, (40000, 22)
                    cases.append(dict(
                        sending=p.sending, receiving=p.receiving, sender=p.sender, receiver=p.receiver,
                        authority=p.authority, master_key=p.master.hex(), path=p.path, suite=suite, flags=p.flags, vni=p.vni,
                        protocol=p.protocol, epoch=p.epoch_number(), expires=p.expires, interface=p.interface, port=p.port,
                        sender_port=p.sender_port, messages=[p.message(place).hex() for place in range(3)],
                        proofs=[proof.hex() for proof in p.proofs()], geneve=p.geneve()[:8 + len(p.option())].hex()))
    return cases


def main():
    families = [((4, 4, 4), "ipv4"), ((6, 6, 6), "ipv6"), ((4, 6, 4), "ipv6 in ipv4"), ((6, 4, 4), "ipv4 in ipv6")]
    for versions, name in families:
        valid(*versions, name)
    for versions, name in families[:2]:
        base = Packet(*versions)
        times(base, name)
        stolen(base, name, "192.0.2.99" if versions[0] == 4 else "2001:db8:1::99")
        forms(base, name)
        withdrawn(base, name)
        order(base, name)
    inside("ipv4", "ipv6 in ipv4")
    outside("ipv4", "ipv6")
    routed()
    out = dict(
        about="Vectors and cases for docs/wire.md chapter 8, made by proofs.py.", now=NOW, epoch_length=EPOCH_LENGTH,
        max_lifetime=MAX_LIFETIME, verifiers=VERIFIERS, endpoints=["192.0.2.0/24", "2001:db8:1::/64"],
        authorities=[dict(address=address, master_key=master.hex()) for address, master in (
            ("198.51.100.1", MASTER), ("2001:db8:a::1", MASTER), ("198.51.100.2", OTHER_MASTER),
            ("2001:db8:a::2", OTHER_MASTER))],
        keys=keys(), segments=segments(), routes=routes(), packets=ROWS)
    write("proofs.json", out)
    print(f"proofs.json: {len(ROWS)} rows, {len(out['segments'])} segments, {len(out['keys'])} keys")


main()
