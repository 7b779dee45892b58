#!/usr/bin/env python3
"""Writes ask.json: vectors and cases for docs/wire.md §8.13, without any code of the project.

Needs the `cryptography` package. Byte strings are hex. A wrong request has an outcome: `not_ours` (not one of our requests),
`forged` (not sealed with the line's key) or `malformed` (sealed with it, but not a valid question). A wrong answer is one that
the client that sent the request rejects.
"""
import ipaddress
import struct

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from vectors import write

KEY, OTHER_KEY = bytes(range(32)), bytes(range(100, 132))
LINE, OTHER_LINE = 0x1122334455667788, 0x99AABBCCDDEEFF00
REQUEST, ANSWER = 0, 1
REFUSALS = ["denied", "no_rule", "no_receiver", "no_segment", "busy", "not_logged_in", "internal"]


def packed(address):
    address = ipaddress.ip_address(address)
    return address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed


def nonce(way, counter):
    return bytes([0, 0, 0, way]) + struct.pack(">Q", counter)


def padded(bytes_, length):
    assert len(bytes_) <= length
    return bytes_ + bytes(length - len(bytes_))


def question(network="blue", sender="10.0.0.5", sending="192.0.2.1", receiver="10.0.0.7", protocol=6, port=22,
             sender_port=0, kind=1, length=None, zero=0, padding=b""):
    name = network.encode() if isinstance(network, str) else network
    head = struct.pack(">BBHHBB", kind, protocol, port, sender_port, len(name) if length is None else length, zero)
    text = head + packed(sender) + packed(sending) + packed(receiver) + name
    return padded(text, 220 - len(padding)) + padding


def request(plain, counter=1, line=LINE, key=KEY, head=None, way=REQUEST):
    head = head or b"VSq\x01" + struct.pack(">QQ", line, counter)
    return head + ChaCha20Poly1305(key).encrypt(nonce(way, counter), plain, head)


def given(vni=100, now=1_800_000_000, receiving="192.0.2.2", option=b"", hops=(), words=None, count=None, zero=0,
          padding=b""):
    words = len(option) // 4 if words is None else words
    count = len(hops) if count is None else count
    text = b"\0" + struct.pack(">I", vni)[1:] + struct.pack(">I", now) + packed(receiving)
    text += struct.pack(">BBH", words, count, zero) + option + b"".join(packed(hop) for hop in hops)
    return padded(text, 224 - len(padding)) + padding


def refused(reason, text, length=None, padding=b""):
    text = text.encode() if isinstance(text, str) else text
    whole = bytes([reason, len(text) if length is None else length]) + text
    return padded(whole, 224 - len(padding)) + padding


def answer(plain, counter=1, key=KEY, head=None, way=ANSWER):
    head = head or b"VSa\x01" + struct.pack(">Q", counter)
    return head + ChaCha20Poly1305(key).encrypt(nonce(way, counter), plain, head)


def requests():
    cases = []
    for counter, fields in [
        (1, {}),
        (2, dict(network="n" * 64, protocol=17, port=65535, sender_port=40000)),
        (1023, dict(network="a", sender="fd00::5", sending="2001:db8:1::1", receiver="fd00::7", protocol=255, port=0)),
        (2**64 - 1, dict(network="team@west+1._-", sender="10.255.255.255", sending="2001:db8:1::1")),
    ]:
        row = dict(network="blue", sender="10.0.0.5", sending="192.0.2.1", receiver="10.0.0.7", protocol=6, port=22,
                   sender_port=0) | fields
        plain = question(**fields)
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
    ]:
        row = dict(vni=100, now=1_800_000_000, receiving="192.0.2.2", hops=[]) | fields
        plain = given(**fields)
        cases.append(dict(key=KEY.hex(), counter=counter, **(row | dict(option=row["option"].hex())), reply=plain.hex(),
                          datagram=answer(plain, counter).hex()))
    for number, name in enumerate(REFUSALS, 1):
        text = "" if name == "busy" else "no rule of policy.toml lets alice send to 10.0.0.7 tcp/22: é"
        text = "x" * 222 if name == "internal" else text
        plain = refused(number, text)
        cases.append(dict(key=KEY.hex(), counter=number, reason=name, text=text, reply=plain.hex(),
                          datagram=answer(plain, number).hex()))
    return cases


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
        ("a kind that is not there yet", "malformed", request(question(kind=2))),
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
        ("a reserved byte", "malformed", request(question(zero=1))),
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
        ("a reserved byte", answer(given(option=option, zero=1))),
        ("padding that is not zero", answer(given(option=option, padding=b"\1"))),
        ("an unknown reason", answer(refused(8, "no"))),
        ("a text longer than there is room", answer(refused(1, "no", length=223))),
        ("a text that is not UTF-8", answer(refused(1, b"\xff"))),
        ("a text that is cut", answer(refused(1, "nono", length=2))),
        ("padding behind a text", answer(refused(1, "no", padding=b"\1"))),
    ]
    return [dict(name=name, key=KEY.hex(), datagram=datagram.hex()) for name, datagram in rows]


def main():
    out = dict(about="Vectors and cases for docs/wire.md §8.13, made by ask.py.", requests=requests(), answers=answers(),
               wrong_requests=wrong_requests(), wrong_answers=wrong_answers())
    write("ask.json", out)
    print(f"ask.json: " + ", ".join(f"{len(rows)} {name}" for name, rows in list(out.items())[1:]))


main()
