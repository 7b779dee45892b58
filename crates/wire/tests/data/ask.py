#!/usr/bin/env python3
"""Writes ask.json: vectors and cases for docs/wire.md §8.13 to §8.16, without any code of the project.

Needs the `cryptography` package. Byte strings are hex. A wrong request has an outcome: `not_ours` (not one of our requests),
`forged` (not sealed with the line's key) or `malformed` (sealed with it, but not a valid question). A wrong answer is one that
the client that sent the request rejects.
"""
import hashlib
import hmac
import ipaddress
import struct

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from vectors import write

KEY, OTHER_KEY = bytes(range(32)), bytes(range(100, 132))
LINE, OTHER_LINE = 0x1122334455667788, 0x99AABBCCDDEEFF00
REQUEST, ANSWER = 0, 1
REFUSALS = ["denied", "no_rule", "no_receiver", "no_segment", "busy", "not_logged_in", "internal", "withheld", "cant_issue",
            "too_many", "no_majority", "other_address", "stale", "over_https"]


def packed(address):
    address = ipaddress.ip_address(address)
    return address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed


def nonce(way, counter):
    return bytes([0, 0, 0, way]) + struct.pack(">Q", counter)


def padded(bytes_, length):
    assert len(bytes_) <= length
    return bytes_ + bytes(length - len(bytes_))


def question(network="blue", sender="10.0.0.5", sending="192.0.2.1", receiver="10.0.0.7", protocol=6, port=22,
             sender_port=0, kind=1, length=None, flags=0, padding=b""):
    name = network.encode() if isinstance(network, str) else network
    head = struct.pack(">BBHHBB", kind, protocol, port, sender_port, len(name) if length is None else length, flags)
    text = head + packed(sender) + packed(sending) + packed(receiver) + name
    return padded(text, 220 - len(padding)) + padding


def request(plain, counter=1, line=LINE, key=KEY, head=None, way=REQUEST):
    head = head or b"VSq\x01" + struct.pack(">QQ", line, counter)
    return head + ChaCha20Poly1305(key).encrypt(nonce(way, counter), plain, head)


def given(vni=100, now=1_800_000_000, receiving="192.0.2.2", option=b"", hops=(), answers=b"", words=None, count=None,
          answer_words=None, others=0, padding=b""):
    words = len(option) // 4 if words is None else words
    count = len(hops) if count is None else count
    text = b"\0" + struct.pack(">I", vni)[1:] + struct.pack(">I", now) + packed(receiving)
    answer_words = len(answers) // 4 if answer_words is None else answer_words
    text += struct.pack(">BBBB", words, count, answer_words, others) + option + b"".join(packed(hop) for hop in hops) + answers
    return padded(text, 224 - len(padding)) + padding


def refused(reason, text, length=None, padding=b""):
    text = text.encode() if isinstance(text, str) else text
    whole = bytes([reason, len(text) if length is None else length]) + text
    return padded(whole, 224 - len(padding)) + padding


def answer(plain, counter=1, key=KEY, head=None, way=ANSWER):
    head = head or b"VSa\x01" + struct.pack(">Q", counter)
    return head + ChaCha20Poly1305(key).encrypt(nonce(way, counter), plain, head)


def grant_question(address="203.0.113.10", protocol=6, port=22, time=1_800_000_000, flags=0, padding=b""):
    text = struct.pack(">BBHI", 2, protocol, port, time) + packed(address) + bytes([flags])
    return padded(text, 220 - len(padding)) + padding


def header(suite=3, flags=1, epoch=7, prefix=32, expires=1_800_000_300, handle=0x0102030405060708, version=1):
    return struct.pack(">BBBBIQ", version << 4 | suite, flags, epoch, prefix, expires, handle)


def terms(treatment=2, compress=0, suites=7, forward=True, rekey=120, ipv4=None, ipv6=None, present=True, flags=None):
    flags = (1 if present else 0) | (2 if forward else 0) if flags is None else flags
    def end(pair, family):
        if pair is None:
            return bytes(6 if family == 4 else 18)
        return ipaddress.ip_address(pair[0]).packed + struct.pack(">H", pair[1])
    return struct.pack(">BBBBI", flags, treatment, compress, suites, rekey) + end(ipv4, 4) + end(ipv6, 6)


def grant(head=None, carrier=1, receiver="git", rule="policy.toml:17 staff may use git", now=1_800_000_000,
          key=bytes(range(16)), tunnel=bytes(32), lengths=None, kind=128, padding=b""):
    names = [name.encode() if isinstance(name, str) else name for name in (receiver, rule)]
    lengths = lengths or [len(name) for name in names]
    text = struct.pack(">BBBBI", kind, carrier, *lengths, now) + (head or header()) + key + tunnel + b"".join(names)
    return padded(text, 224 - len(padding)) + padding


def requests():
    cases = []
    for counter, fields in [
        (1, {}),
        (2, dict(network="n" * 64, protocol=17, port=65535, sender_port=40000)),
        (1023, dict(network="a", sender="fd00::5", sending="2001:db8:1::1", receiver="fd00::7", protocol=255, port=0)),
        (2**64 - 1, dict(network="team@west+1._-", sender="10.255.255.255", sending="2001:db8:1::1")),
        (3, dict(answers=True)),
        (4, dict(path=0)),
        (5, dict(answers=True, path=3)),
    ]:
        row = dict(network="blue", sender="10.0.0.5", sending="192.0.2.1", receiver="10.0.0.7", protocol=6, port=22,
                   sender_port=0, answers=False, path=None) | fields
        flags = int(row["answers"]) | (0 if row["path"] is None else 2 | row["path"] << 2)
        plain = question(**{name: value for name, value in fields.items() if name not in ("answers", "path")}, flags=flags)
        cases.append(dict(line=LINE, key=KEY.hex(), counter=counter, **row, question=plain.hex(),
                          datagram=request(plain, counter).hex()))
    return cases


def answers():
    option = bytes.fromhex("ff538109") + bytes(range(36))
    longest = bytes.fromhex("ff53811c") + bytes(range(112))
    hops = [f"2001:db8:{hop}::1" for hop in range(1, 6)]
    cases = []
    for counter, fields in [
        (1, dict(option=option)),
        (7, dict(vni=2**24 - 1, now=2**32 - 1, receiving="2001:db8:1::2", option=longest, hops=hops)),
        (2**64 - 1, dict(option=longest, hops=hops[:1], receiving=hops[0])),
        (9, dict(option=option, answers=bytes(range(56)), others=3)),
        (10, dict(option=option, hops=hops[:2], receiving=hops[1], answers=bytes(range(124)))),
    ]:
        row = dict(vni=100, now=1_800_000_000, receiving="192.0.2.2", hops=[], answers=b"", others=0) | fields
        plain = given(**fields)
        shown = row | dict(option=row["option"].hex(), answers=row["answers"].hex())
        cases.append(dict(key=KEY.hex(), counter=counter, **shown, reply=plain.hex(),
                          datagram=answer(plain, counter).hex()))
    for number, name in enumerate(REFUSALS, 1):
        text = "" if name == "busy" else "no rule of policy.toml lets alice send to 10.0.0.7 tcp/22: é"
        text = "x" * 222 if name == "internal" else text
        plain = refused(number, text)
        cases.append(dict(key=KEY.hex(), counter=number, reason=name, text=text, reply=plain.hex(),
                          datagram=answer(plain, number).hex()))
    return cases


def hkdf(key, salt, length=32):
    """HKDF-SHA256 with empty info, for at most 32 bytes."""
    return hmac.new(hmac.new(salt, key, hashlib.sha256).digest(), b"\1", hashlib.sha256).digest()[:length]


def passed_on():
    """Tags of return segments that one endpoint passes on to another (8.15.1)."""
    option = bytes.fromhex("ff538109") + bytes(range(36))
    hops = [f"2001:db8:{hop}::1" for hop in range(1, 4)]
    cases = []
    for fields in [
        {}, dict(proof_key=bytes(32)), dict(vni=2**24 - 1), dict(option=b""),
        dict(sending="2001:db8:9::1", receiving=hops[2], sender="fd00::7", receiver="fd00::5", hops=hops),
    ]:
        row = dict(proof_key=bytes(range(32)), vni=100, sending="192.0.2.2", receiving="192.0.2.1", sender="10.0.0.7",
                   receiver="10.0.0.5", option=option, hops=[]) | fields
        ends = b"".join(packed(row[name]) for name in ("sending", "receiving", "sender", "receiver"))
        message = struct.pack(">I", row["vni"] << 8) + ends + row["option"] + b"".join(packed(hop) for hop in row["hops"])
        tag = hmac.new(hkdf(row["proof_key"], b"vouchsafe answers key v1"), message, hashlib.sha256).digest()[:16]
        cases.append(row | dict(proof_key=row["proof_key"].hex(), option=row["option"].hex(), tag=tag.hex()))
    return cases


def grant_requests():
    cases = []
    for counter, fields in [
        (1, {}),
        (2, dict(address="2001:db8::10", protocol=17, port=65535, time=2**32 - 1, consented=True)),
        (2**64 - 1, dict(address="0.0.0.0", protocol=255, port=0, time=0)),
    ]:
        row = dict(address="203.0.113.10", protocol=6, port=22, time=1_800_000_000, consented=False) | fields
        plain = grant_question(row["address"], row["protocol"], row["port"], row["time"], int(row["consented"]))
        cases.append(dict(line=LINE, key=KEY.hex(), counter=counter, **row, question=plain.hex(),
                          datagram=request(plain, counter).hex()))
    return cases


def grant_answers():
    cases = []
    for counter, head, fields, tunnel in [
        (1, {}, {}, None),
        (7, dict(suite=2, flags=0x2b, epoch=255, prefix=128, expires=2**32 - 1, handle=2**64 - 1),
         dict(carrier=2, receiver="r" * 64, rule="x" * 88, now=2**32 - 1, key=bytes(range(200, 216))),
         dict(treatment=1, compress=3, suites=4, forward=False, rekey=3600, ipv4=("198.51.100.7", 4499),
              ipv6=("2001:db8::7", 65535))),
        (8, dict(flags=0x41), dict(receiver="é"), dict(ipv4=("198.51.100.7", 1))),
        (2**64 - 1, dict(prefix=0), dict(receiver="", rule="", key=bytes(16)),
         dict(treatment=0, compress=1, suites=0, rekey=0, ipv6=("::", 1))),
    ]:
        plain = grant(header(**head), **fields, tunnel=terms(**tunnel) if tunnel else bytes(32))
        row = dict(carrier=1, receiver="git", rule="policy.toml:17 staff may use git", now=1_800_000_000,
                   key=bytes(range(16))) | fields
        row |= dict(grant_key=row.pop("key").hex(), header=header(**head).hex())
        whole = dict(treatment=2, compress=0, suites=7, forward=True, rekey=120, ipv4=None, ipv6=None)
        cases.append(dict(key=KEY.hex(), counter=counter, **row, tunnel=whole | tunnel if tunnel else None,
                          reply=plain.hex(), datagram=answer(plain, counter).hex()))
    return cases


def wrong_grant_answers():
    rows = [
        ("a segment", given(option=bytes.fromhex("ff538109") + bytes(range(36)))),
        ("an unknown kind", grant(kind=129)),
        ("no carrier", grant(carrier=0)),
        ("a carrier that the authority does not name", grant(carrier=4)),
        ("an unknown carrier", grant(carrier=3)),
        ("a header of another version", grant(header(version=2))),
        ("a header of an unknown suite", grant(header(suite=1))),
        ("a header with a reserved flag", grant(header(flags=0x81))),
        ("a header with too long a prefix", grant(header(prefix=33))),
        ("a receiver's name longer than there is room", grant(lengths=[153, 0])),
        ("a rule longer than there is room", grant(receiver="", lengths=[0, 153])),
        ("names that are cut", grant(lengths=[3, 3])),
        ("a receiver's name that is not UTF-8", grant(receiver=b"\xff")),
        ("a rule that is not UTF-8", grant(rule=b"\xc3")),
        ("padding that is not zero", grant(padding=b"\1")),
        ("terms that are not there", grant(tunnel=terms(present=False, ipv4=("198.51.100.7", 4499)))),
        ("no terms, but a treatment", grant(tunnel=terms(flags=0))),
        ("an unknown flag of terms", grant(tunnel=terms(flags=7))),
        ("an unknown treatment", grant(tunnel=terms(treatment=3))),
        ("an unknown compression", grant(tunnel=terms(compress=4))),
        ("an IPv4 address without a port", grant(tunnel=terms(ipv4=("198.51.100.7", 0)))),
        ("an IPv6 address without a port", grant(tunnel=terms(ipv6=("2001:db8::7", 0)))),
        ("an unknown reason", refused(15, "no")),
        ("padding behind a text", refused(1, "no", padding=b"\1")),
    ]
    return [dict(name=name, key=KEY.hex(), datagram=answer(plain).hex()) for name, plain in rows]


def changed(datagram, at, value=1):
    return datagram[:at] + bytes([datagram[at] ^ value]) + datagram[at + 1:]


def wrong_requests():
    whole = request(question())
    rows = [(f"cut to {length} bytes", "not_ours", whole[:length]) for length in (0, 1, 3, 4, 12, 19, 20, 255)]
    rows += [(f"{len(more)} bytes more", "not_ours", whole + more) for more in (b"\0", bytes(300))]
    rows += [(f"byte {at} of the magic changed", "not_ours", changed(whole, at)) for at in range(3)]
    rows += [("another version", "not_ours", changed(whole, 3)), ("an answer's magic", "not_ours", b"VSa" + whole[3:])]
    rows += [(f"byte {at} changed", "forged", changed(whole, at, 0x80)) for at in (12, 19, 20, 100, 239, 240, 255)]
    rows += [
        ("sealed with another line's key", "forged", request(question(), key=OTHER_KEY)),
        ("sealed as an answer", "forged", request(question(), way=ANSWER)),
        ("sealed for another line", "forged", whole[:4] + request(question(), line=OTHER_LINE)[4:12][::-1] + whole[12:]),
        ("another counter in front", "forged", whole[:12] + struct.pack(">Q", 2) + whole[20:]),
        ("all zero behind the head", "forged", whole[:20] + bytes(236)),
        ("an unknown kind", "malformed", request(question(kind=0))),
        ("a kind that is not there yet", "malformed", request(question(kind=3))),
        ("a request for a segment as one for a grant", "malformed", request(question(kind=2))),
        ("a grant for protocol 0", "malformed", request(grant_question(protocol=0))),
        ("a grant with an unknown flag", "malformed", request(grant_question(flags=2))),
        ("a grant with both flags", "malformed", request(grant_question(flags=3))),
        ("padding behind a request for a grant", "malformed", request(grant_question(padding=b"\1"))),
        ("protocol 0", "malformed", request(question(protocol=0))),
        ("no name", "malformed", request(question(network=""))),
        ("a name of 65 bytes", "malformed", request(question(network="n" * 65))),
        ("a length of 255", "malformed", request(question(length=255))),
        ("a length that cuts the name", "malformed", request(question(length=3))),
        ("a length beyond the name", "malformed", request(question(length=5))),
        ("a space in the name", "malformed", request(question(network="blue net"))),
        ("a name that is not ASCII", "malformed", request(question(network="blåu"))),
        ("a name that is not UTF-8", "malformed", request(question(network=b"bl\xffe"))),
        ("a line end in the name", "malformed", request(question(network="blue\n"))),
        ("an unknown flag", "malformed", request(question(flags=16))),
        ("all flags", "malformed", request(question(flags=255))),
        ("a path from a client that knows none", "malformed", request(question(flags=4))),
        ("a path from a client that knows none, with answers", "malformed", request(question(flags=13))),
        ("padding that is not zero", "malformed", request(question(padding=b"\1"))),
    ]
    return [dict(name=name, line=LINE, key=KEY.hex(), outcome=outcome, datagram=datagram.hex())
            for name, outcome, datagram in rows]


def wrong_answers():
    option = bytes.fromhex("ff538109") + bytes(range(36))
    whole = answer(given(option=option))
    rows = [(f"cut to {length} bytes", whole[:length]) for length in (0, 4, 11, 12, 251)]
    rows += [("a byte more", whole + b"\0"), ("another version", changed(whole, 3))]
    rows += [(f"byte {at} changed", changed(whole, at)) for at in (0, 4, 11, 12, 100, 235, 236, 251)]
    rows += [
        ("sealed with another line's key", answer(given(option=option), key=OTHER_KEY)),
        ("a request of the same line, sent back", request(question())),
        ("sealed as a request", answer(given(option=option), way=REQUEST)),
        ("more words than there is room for", answer(given(words=50))),
        ("more words than an option has", answer(given(words=30))),
        ("more hops than proofs", answer(given(option=option, count=6))),
        ("more paths than there are numbers", answer(given(option=option, others=4))),
        ("more words for answers than there is room for", answer(given(option=option, answer_words=40))),
        ("bytes behind the answers", answer(given(option=option, answers=bytes(8), answer_words=1, padding=b"\1"))),
        ("padding that is not zero", answer(given(option=option, padding=b"\1"))),
        ("an unknown reason", answer(refused(15, "no"))),
        ("a grant", answer(grant())),
        ("a text longer than there is room", answer(refused(1, "no", length=223))),
        ("a text that is not UTF-8", answer(refused(1, b"\xff"))),
        ("a text that is cut", answer(refused(1, "nono", length=2))),
        ("padding behind a text", answer(refused(1, "no", padding=b"\1"))),
    ]
    return [dict(name=name, key=KEY.hex(), datagram=datagram.hex()) for name, datagram in rows]


def main():
    out = dict(about="Vectors and cases for docs/wire.md §8.13 to §8.16, made by ask.py.", requests=requests(),
               answers=answers(), wrong_requests=wrong_requests(), wrong_answers=wrong_answers(),
               grant_requests=grant_requests(), grant_answers=grant_answers(), passed_on=passed_on(),
               wrong_grant_answers=wrong_grant_answers())
    write("ask.json", out)
    print(f"ask.json: " + ", ".join(f"{len(rows)} {name}" for name, rows in list(out.items())[1:]))


main()
