//! The published vectors of wire.md §1 to §5 hold. They were made without this crate's code.

use serde_json::Value;
use std::net::IpAddr;
use wire::ls::KeyTransfer;
use wire::packet::Packet;
use wire::shim::Content;
use wire::{
    Carrier, ClientKey, Destination, DropReason, Epoch, Flags, GrantHeader, GrantKey, Handle, Holder, LsToken,
    MasterKey, Pair, Suite, Token, VerifierKey, reorder, tail,
};

fn vectors() -> Value {
    serde_json::from_str(include_str!("data/tokens.json")).expect("tokens.json is JSON")
}

fn bytes<const N: usize>(case: &Value, field: &str) -> [u8; N] {
    let text = case[field].as_str().unwrap_or_else(|| panic!("{field} is missing in {case}"));
    hex::decode(text).expect("hex").try_into().expect("length")
}

fn number(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn mac_vectors(name: &str, suite: Suite) {
    let all = vectors();
    let cases = all[name].as_array().expect("cases");
    assert!(cases.len() >= 10);
    for case in cases {
        let message = hex::decode(case["message"].as_str().expect("message")).expect("hex");
        let whole = suite.mac(&bytes(case, "key"), &[&message]);
        assert_eq!(whole, bytes::<16>(case, "mac"), "{case}");
        let (one, two) = message.split_at(message.len() / 3);
        assert_eq!(suite.mac(&bytes(case, "key"), &[one, two]), whole, "in two parts: {case}");
    }
}

#[test]
fn siphash_gives_the_published_macs() {
    mac_vectors("siphash128", Suite::Siphash);
}

#[test]
fn aes_cmac_gives_the_published_macs() {
    mac_vectors("aes_cmac", Suite::AesCmac);
}

fn check(case: &Value) -> Result<(), DropReason> {
    let to = Destination {
        address: case["destination"].as_str().expect("destination").parse().expect("address"),
        protocol: number(case, "protocol") as u8,
        port: number(case, "port") as u16,
    };
    let source: IpAddr = match case["source"].as_str() {
        Some(source) => source.parse().expect("source"),
        None if to.address.is_ipv4() => "192.0.2.1".parse().expect("address"),
        None => "2001:db8:2::1".parse().expect("address"),
    };
    let now = number(case, "now");
    let token = Token::decode(&bytes(case, "token"), to.address.is_ipv6())?;
    let epoch = Epoch::at(now, number(case, "epoch_length") as u32)
        .from_wire(token.header.epoch)
        .ok_or(DropReason::UnknownEpoch)?;
    let expires = u64::from(token.header.expires);
    if expires <= now {
        return Err(DropReason::Expired);
    }
    if expires > now + 3600 {
        return Err(DropReason::LifetimeTooLong);
    }
    if now.abs_diff(token.time.into()) > 30 {
        return Err(DropReason::ClockSkew);
    }
    let verifier_key = MasterKey::new(bytes(case, "master_key"))
        .verifier_key(case["verifier"].as_str().expect("verifier"), epoch)
        .expect("id fits");
    let key = token.header.key(&verifier_key, &to, source);
    if !token.proves(&key, &to) {
        return Err(DropReason::BadTag);
    }
    let inside = case["inside"].as_bool().unwrap_or_default();
    if token.header.flags.has(Flags::SEALED) && !inside { Err(DropReason::Unsealed) } else { Ok(()) }
}

#[test]
fn tokens_of_sealed_grants_get_the_published_verdicts() {
    let all: Value = serde_json::from_str(include_str!("data/sealed.json")).expect("sealed.json is JSON");
    let cases = all["tokens"].as_array().expect("cases");
    assert!(cases.len() >= 20);
    for case in cases {
        let expected = case["reason"].as_str();
        assert_eq!(check(case).err().map(DropReason::name), expected, "{}", case["name"]);
        if let Ok(header) = GrantHeader::decode(&bytes(case, "header")) {
            assert_eq!(header.encode(), bytes::<16>(case, "header"));
        }
    }
}

#[test]
fn tokens_get_the_published_verdicts() {
    let all = vectors();
    let cases = all["tokens"].as_array().expect("cases");
    assert!(cases.len() >= 30);
    for case in cases {
        let expected = case["reason"].as_str();
        assert_eq!(check(case).err().map(DropReason::name), expected, "{}", case["name"]);
    }
}

#[test]
fn valid_tokens_are_rebuilt_byte_for_byte() {
    let all = vectors();
    for case in all["tokens"].as_array().expect("cases").iter().filter(|case| case["verdict"] == "admit") {
        let to = Destination {
            address: case["destination"].as_str().expect("destination").parse().expect("address"),
            protocol: number(case, "protocol") as u8,
            port: number(case, "port") as u16,
        };
        let verifier_key = MasterKey::new(bytes(case, "master_key"))
            .verifier_key(case["verifier"].as_str().expect("verifier"), Epoch(number(case, "epoch")))
            .expect("id fits");
        assert_eq!(*verifier_key.bytes(), bytes::<32>(case, "verifier_key"), "{}", case["name"]);
        let header = GrantHeader::decode(&bytes(case, "header")).expect("header");
        assert_eq!(header.encode(), bytes::<16>(case, "header"));
        let source = case["source"].as_str().unwrap_or("0.0.0.0").parse().expect("source");
        let key = header.key(&verifier_key, &to, source);
        assert_eq!(*key.bytes(), bytes::<16>(case, "grant_key"), "{}", case["name"]);
        let key = GrantKey::new(*key.bytes());
        let token = Token::new(header, &key, number(case, "time") as u32, number(case, "nonce") as u32, &to);
        assert_eq!(token.encode(), bytes::<36>(case, "token"), "{}", case["name"]);
    }
}

#[test]
fn the_scheme_of_ls_gives_the_published_keys_tokens_and_options() {
    let all = vectors();
    let cases = all["ls"].as_array().expect("cases");
    assert!(cases.len() >= 3);
    for case in cases {
        let pair = Pair { unique_id: bytes(case, "unique_id"), nonce1: bytes(case, "nonce1") };
        let secret = hex::decode(case["secret"].as_str().expect("secret")).expect("hex");
        let key = ClientKey::of(pair, &secret);
        assert_eq!(*key.bytes(), bytes::<28>(case, "client_key"));
        let token = LsToken::new(pair, u16::from_be_bytes(bytes(case, "nonce2")), &key);
        assert_eq!(token.encode(), bytes::<37>(case, "token"));
        assert_eq!(LsToken::decode(&bytes(case, "token")), token);
        assert!(token.proves(&key));
        let options = [
            ("option", Content::Ls(token.encode())),
            ("key_transfer_option", Content::KeyTransfer(KeyTransfer { key, pair }.encode())),
            ("support_option", Content::Support),
        ];
        for (name, content) in options {
            assert_eq!(content.encode(), bytes::<40>(case, name), "{name}");
            assert!(Content::decode(&bytes(case, name)) == Ok(content), "{name}");
        }
    }
}

#[test]
fn handles_hold_the_published_holders() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/holders.json")).expect("holders.json is JSON");
    assert!(cases.len() >= 50);
    for case in cases {
        let key = VerifierKey::new(bytes(&case, "verifier_key"));
        let holder = Holder::new(number(&case, "account") as u32, number(&case, "session") as u8).expect("small");
        let handle = Handle(u64::from_be_bytes(bytes(&case, "handle")));
        assert_eq!(holder.handle(&key, number(&case, "random") as u32), handle, "{case}");
        assert_eq!(Holder::of(handle, &key), holder, "{case}");
    }
}

/// Test vectors that `data/fast_open.py` made. A row without a token is a SYN in which nobody finds one.
#[test]
fn options_and_blocks_are_added_and_removed_as_published() {
    let all: Value = serde_json::from_str(include_str!("data/fast_open.json")).expect("fast_open.json is JSON");
    let rows = all["frames"].as_array().expect("rows");
    for row in rows {
        let frame = |field: &str| hex::decode(row[field].as_str().expect(field)).expect("hex");
        let (carrying, name) = (frame("carrying"), &row["name"]);
        let found = tail::find(&carrying, &Packet::parse(&carrying));
        if row["token"].is_null() {
            assert_eq!(found, None, "{name}");
            continue;
        }
        let (token, plain) = (bytes(row, "token"), frame("plain"));
        assert_eq!(found, Some((&token, Carrier::FastOpen)), "{name}");
        let mut made = plain.clone();
        made.resize(plain.len() + tail::FAST_OPEN_ADDS, 0);
        assert_eq!(tail::append_with_option(&mut made, &Packet::parse(&plain), &token), Some(carrying.len()), "{name}");
        assert_eq!(made, carrying, "{name}");
        assert_eq!(tail::strip(&mut made, &Packet::parse(&carrying)), Some(plain.len()), "{name}");
        assert_eq!(made[..plain.len()], plain, "{name}");
    }
    assert_eq!(rows.len(), 20);
}

/// Test vectors that `data/tcp_in_udp.py` made. A row without a segment is a datagram that carries none.
#[test]
fn segments_and_datagrams_become_each_other_as_published() {
    let all: Value = serde_json::from_str(include_str!("data/tcp_in_udp.json")).expect("tcp_in_udp.json is JSON");
    let rows = all["frames"].as_array().expect("rows");
    for row in rows {
        let frame = |field: &str| hex::decode(row[field].as_str().expect(field)).expect("hex");
        let (datagram, name) = (frame("datagram"), &row["name"]);
        let parsed = Packet::parse(&datagram);
        if row["segment"].is_null() {
            assert_eq!(reorder::flags(&datagram, &parsed), None, "{name}");
            assert_eq!(reorder::to_tcp(&mut datagram.clone(), &parsed), None, "{name}");
            continue;
        }
        let (segment, back) = (frame("segment"), frame("back"));
        let mut made = segment.clone();
        assert_eq!(reorder::to_udp(&mut made, &Packet::parse(&segment)), Some(()), "{name}");
        assert_eq!(made, datagram, "{name}");
        assert_eq!(reorder::flags(&datagram, &parsed), Some(Packet::parse(&back).tcp_flags), "{name}");
        assert_eq!(Some(reorder::ends_in_block(&datagram, &parsed)), row["block"].as_bool(), "{name}");
        assert_eq!(reorder::to_tcp(&mut made, &parsed), Some(()), "{name}");
        assert_eq!(made, back, "{name}");
        let found = tail::find(&back, &Packet::parse(&back)).map(|(_, carrier)| carrier);
        assert_eq!(found == Some(Carrier::TcpInUdp), row["block"].as_bool().expect("block"), "{name}");
    }
    assert_eq!(rows.len(), 35);
}
