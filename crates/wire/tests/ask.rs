//! Requests for segments and grants by datagram: vectors made without this crate's code, and properties that hold for
//! every input (wire.md §8.13, §8.14).

use proptest::prelude::*;
use serde_json::Value;
use std::net::IpAddr;
use wire::Vni;
use wire::ask::grant::{GrantAnswer, GrantQuestion, GrantReply, NAMES_MAX, TunnelTerms};
use wire::ask::{
    ANSWER_LEN, AnyQuestion, GIVEN_MAX, GivenReply, LineKey, LineNumber, NAME_MAX, OPTION_MAX, QUESTION_LEN, Question,
    REPLY_LEN, REQUEST_LEN, Refusal, Reply, TEXT_MAX, envelope,
};
use wire::geneve::{ENCAPSULATION_MAX, HEADER_LEN};
use wire::seal::{Suites, Treatment};
use wire::segment::PROOFS_MAX;
use wire::{Carrier, Destination, Ends, GrantHeader, GrantKey, ProofKey, answers};

fn vectors(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("data/ask.json")).expect("ask.json is JSON");
    all[name].as_array().expect("an array").clone()
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn number(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap_or_else(|| panic!("{field} is missing in {case}"))
}

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    hex::decode(text(case, field)).expect("hex")
}

fn address(case: &Value, field: &str) -> IpAddr {
    text(case, field).parse().expect("an address")
}

fn key(case: &Value) -> LineKey {
    LineKey::new(bytes(case, "key").try_into().expect("32 bytes"))
}

#[test]
fn requests_are_as_others_make_them() {
    for case in vectors("requests") {
        let question = Question {
            network: text(&case, "network"),
            sender: address(&case, "sender"),
            sending: address(&case, "sending"),
            receiver: address(&case, "receiver"),
            protocol: number(&case, "protocol") as u8,
            port: number(&case, "port") as u16,
            sender_port: number(&case, "sender_port") as u16,
            answers: case["answers"].as_bool().expect("a flag"),
            path: case["path"].as_u64().map(|path| path as u8),
        };
        let plain = question.encode().expect("it can be asked");
        assert_eq!(plain[..], bytes(&case, "question"), "{case}");
        assert_eq!(Question::decode(&plain), Some(question));
        let (line, counter) = (LineNumber(number(&case, "line")), number(&case, "counter"));
        let mut request = key(&case).seal_request(line, counter, &plain).expect("it is sealed");
        assert_eq!(request[..], bytes(&case, "datagram"), "{case}");
        let envelope = envelope(&request).expect("it is a request");
        assert_eq!((envelope.line, envelope.counter), (line, counter));
        assert_eq!(key(&case).open_request(envelope, &mut request), Some(&plain));
    }
}

#[test]
fn answers_are_as_others_make_them() {
    for case in vectors("answers") {
        let option = case["option"].as_str().map(|option| hex::decode(option).expect("hex")).unwrap_or_default();
        let hops = case["hops"].as_array().cloned().unwrap_or_default();
        let hop = |hop: &Value| hop.as_str().expect("text").parse::<std::net::Ipv6Addr>().expect("an address").octets();
        let hops: Vec<_> = hops.iter().map(hop).collect();
        let answers = case["answers"].as_str().map(|bytes| hex::decode(bytes).expect("hex")).unwrap_or_default();
        let reply = match case["reason"].as_str() {
            Some(name) => {
                let reason = Refusal::ALL.into_iter().find(|reason| reason.name() == name).expect("a reason");
                Reply::Refused { reason, text: text(&case, "text") }
            }
            None => Reply::Given(GivenReply {
                vni: Vni::new(number(&case, "vni") as u32).expect("24 bits"),
                now: number(&case, "now") as u32,
                receiving: address(&case, "receiving"),
                option: &option,
                hops: &hops,
                answers: &answers,
                others: number(&case, "others") as u8,
            }),
        };
        let plain = reply.encode().expect("there is room");
        assert_eq!(plain[..], bytes(&case, "reply"), "{case}");
        assert_eq!(Reply::decode(&plain), Some(reply));
        let counter = number(&case, "counter");
        let mut answer = key(&case).seal_answer(counter, &plain).expect("it is sealed");
        assert_eq!(answer[..], bytes(&case, "datagram"), "{case}");
        assert_eq!(key(&case).open_answer(&mut answer), Some((counter, &plain)));
    }
}

#[test]
fn tags_of_segments_that_are_passed_on_are_as_others_make_them() {
    let cases = vectors("passed_on");
    assert_eq!(cases.len(), 5);
    for case in cases {
        let key = ProofKey::new(bytes(&case, "proof_key").try_into().expect("32 bytes"));
        let vni = Vni::new(number(&case, "vni") as u32).expect("24 bits");
        let [sending, receiving, sender, receiver] =
            ["sending", "receiving", "sender", "receiver"].map(|field| address(&case, field));
        let ends = Ends { sending, receiving, sender, receiver };
        let hop = |hop: &Value| hop.as_str().expect("text").parse::<std::net::Ipv6Addr>().expect("an address").octets();
        let hops: Vec<_> = case["hops"].as_array().expect("a list").iter().map(hop).collect();
        let (option, tag) = (bytes(&case, "option"), bytes(&case, "tag"));
        assert_eq!(answers::tag(&key, vni, &ends, &option, &hops).expect("a tag")[..], tag, "{case}");
        let mut tag: [u8; 16] = tag.try_into().expect("16 bytes");
        assert!(answers::is_tagged(&key, vni, &ends, &option, &hops, &tag));
        tag[15] ^= 1;
        assert!(!answers::is_tagged(&key, vni, &ends, &option, &hops, &tag));
    }
}

#[test]
fn requests_for_grants_are_as_others_make_them() {
    for case in vectors("grant_requests") {
        let question = GrantQuestion {
            to: Destination {
                address: address(&case, "address"),
                protocol: number(&case, "protocol") as u8,
                port: number(&case, "port") as u16,
            },
            consented: case["consented"].as_bool().expect("a flag"),
            time: number(&case, "time") as u32,
        };
        let plain = question.encode().expect("it can be asked");
        assert_eq!(plain[..], bytes(&case, "question"), "{case}");
        assert_eq!(AnyQuestion::decode(&plain), Some(AnyQuestion::Grant(question)));
        assert_eq!(Question::decode(&plain), None, "it is no request for a segment");
        let (line, counter) = (LineNumber(number(&case, "line")), number(&case, "counter"));
        let mut request = key(&case).seal_request(line, counter, &plain).expect("it is sealed");
        assert_eq!(request[..], bytes(&case, "datagram"), "{case}");
        let envelope = envelope(&request).expect("it is a request");
        assert_eq!(key(&case).open_request(envelope, &mut request), Some(&plain));
    }
}

/// Reads the terms of tunnels of a vector.
fn terms(case: &Value) -> Option<TunnelTerms> {
    let terms = case["tunnel"].as_object().map(|_| &case["tunnel"])?;
    let port = |end: &Value| end[1].as_u64().expect("a port") as u16;
    let end = |family: &str| Some(&terms[family]).filter(|end| end.is_array());
    Some(TunnelTerms {
        treatment: Treatment::ALL.into_iter().find(|treatment| *treatment as u64 == number(terms, "treatment")),
        compress: number(terms, "compress") as u8,
        suites: Suites(number(terms, "suites") as u8),
        forward_secrecy: terms["forward"].as_bool().expect("a flag"),
        rekey: number(terms, "rekey") as u32,
        ipv4: end("ipv4").map(|end| (end[0].as_str().expect("text").parse().expect("an address"), port(end))),
        ipv6: end("ipv6").map(|end| (end[0].as_str().expect("text").parse().expect("an address"), port(end))),
    })
}

#[test]
fn answers_with_grants_are_as_others_make_them() {
    for case in vectors("grant_answers") {
        let reply = GrantReply {
            now: number(&case, "now") as u32,
            header: GrantHeader::decode(&bytes(&case, "header").try_into().expect("16 bytes")).expect("a header"),
            key: GrantKey::new(bytes(&case, "grant_key").try_into().expect("16 bytes")),
            carrier: Carrier::from_number(number(&case, "carrier") as u8).expect("a carrier"),
            receiver: text(&case, "receiver"),
            rule: text(&case, "rule"),
            tunnel: terms(&case),
        };
        let plain = GrantAnswer::Given(reply.clone()).encode().expect("there is room");
        assert_eq!(plain[..], bytes(&case, "reply"), "{case}");
        let Some(GrantAnswer::Given(read)) = GrantAnswer::decode(&plain) else { panic!("{case}") };
        assert_eq!((read.now, read.header, read.carrier), (reply.now, reply.header, reply.carrier));
        assert_eq!((read.receiver, read.rule, read.tunnel), (reply.receiver, reply.rule, reply.tunnel));
        assert_eq!(read.key.bytes(), reply.key.bytes());
        assert_eq!(Reply::decode(&plain), None, "it is no answer with a segment");
        let counter = number(&case, "counter");
        let mut answer = key(&case).seal_answer(counter, &plain).expect("it is sealed");
        assert_eq!(answer[..], bytes(&case, "datagram"), "{case}");
        assert_eq!(key(&case).open_answer(&mut answer), Some((counter, &plain)));
    }
}

#[test]
fn an_answer_that_is_no_grant_and_no_refusal_is_not_taken() {
    for case in vectors("wrong_grant_answers") {
        let mut datagram = bytes(&case, "datagram");
        let key = key(&case);
        let (_, reply) = key.open_answer(&mut datagram).expect("it is sealed with the line's key");
        assert!(GrantAnswer::decode(reply).is_none(), "{case}");
    }
    for case in vectors("answers").iter().filter(|case| case["reason"].is_string()) {
        let reply: [u8; REPLY_LEN] = bytes(case, "reply").try_into().expect("a reply");
        let Some(GrantAnswer::Refused { reason, text: said }) = GrantAnswer::decode(&reply) else { panic!("{case}") };
        assert_eq!((reason.name(), said), (text(case, "reason"), text(case, "text")));
    }
}

/// Returns a grant's reply with these names and terms.
fn reply<'a>(receiver: &'a str, rule: &'a str, tunnel: Option<TunnelTerms>) -> GrantReply<'a> {
    let header = hex::decode("131007200000000f0102030405060708").expect("hex").try_into().expect("16 bytes");
    let (header, key) = (GrantHeader::decode(&header).expect("a header"), GrantKey::new([7; 16]));
    GrantReply { now: 5, header, key, carrier: Carrier::Tail, receiver, rule, tunnel }
}

#[test]
fn what_does_not_fit_is_not_encoded() {
    let name = "n".repeat(NAMES_MAX);
    assert!(reply(&name, "", None).encode().is_some() && reply("", &name, None).encode().is_some());
    assert!(reply(&name, "1", None).encode().is_none() && reply("1", &name, None).encode().is_none());
    let long = "n".repeat(300);
    assert!(reply(&long, "", None).encode().is_none());
    let stream = GrantReply { carrier: Carrier::Stream, ..reply("git", "1", None) };
    assert!(stream.encode().is_none());
    let terms = TunnelTerms {
        treatment: None,
        compress: 0,
        suites: Suites::ALL,
        forward_secrecy: true,
        rekey: 120,
        ipv4: Some(([192, 0, 2, 1].into(), 0)),
        ipv6: None,
    };
    assert!(reply("git", "1", Some(terms)).encode().is_none(), "port 0");
    assert!(reply("git", "1", Some(TunnelTerms { ipv4: None, compress: 4, ..terms })).encode().is_none());
    assert!(reply("git", "1", Some(TunnelTerms { ipv4: None, ..terms })).encode().is_some());
    let to = Destination { address: [192, 0, 2, 1].into(), protocol: 0, port: 22 };
    assert!(GrantQuestion { to, consented: false, time: 0 }.encode().is_none());
}

#[test]
fn a_request_that_is_none_or_not_the_lines_own_or_senseless_is_told_apart() {
    for case in vectors("wrong_requests") {
        let mut datagram = bytes(&case, "datagram");
        let outcome = match envelope(&datagram) {
            None => "not_ours",
            Some(envelope) => match key(&case).open_request(envelope, &mut datagram) {
                None => "forged",
                Some(question) => AnyQuestion::decode(question).map_or("malformed", |_| "asked"),
            },
        };
        assert_eq!(outcome, text(&case, "outcome"), "{case}");
    }
}

#[test]
fn an_answer_that_is_wrong_in_any_way_is_not_taken() {
    for case in vectors("wrong_answers") {
        let mut datagram = bytes(&case, "datagram");
        let key = key(&case);
        let taken = key.open_answer(&mut datagram).and_then(|(_, reply)| Reply::decode(reply));
        assert_eq!(taken, None, "{case}");
    }
}

#[test]
fn the_documents_reasons_are_these() {
    let document = include_str!("../../../docs/wire.md");
    let clause = document.split("**8.13.5**").nth(1).expect("§8.13.5").split("**8.13.6**").next().expect("§8.13.6");
    let rows: Vec<_> = clause
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            Some((cells.next()?.parse::<u8>().ok()?, cells.next()?.trim_matches('`')))
        })
        .collect();
    assert_eq!(rows, Refusal::ALL.map(|reason| (reason as u8, reason.name())));
}

/// An attacker can't make the authority send more than it received (SVLAN §VII, denial of service).
#[test]
fn amplification_the_longest_answer_is_no_longer_than_the_shortest_request() {
    assert_eq!(OPTION_MAX, ENCAPSULATION_MAX - HEADER_LEN, "whatever an option can be");
    let hops = [[0xff; 16]; PROOFS_MAX as usize];
    let key = LineKey::new([7; 32]);
    let name = "n".repeat(NAME_MAX);
    let any = IpAddr::from([0xff; 16]);
    for network in ["n", &name] {
        let question = Question {
            network,
            sender: any,
            sending: any,
            receiver: any,
            protocol: 1,
            port: 0,
            sender_port: 0,
            answers: true,
            path: Some(3),
        };
        assert_eq!(Question { path: Some(4), ..question }.encode(), None, "there is no such path");
        let question = question.encode().expect("it can be asked");
        let request = key.seal_request(LineNumber(0), 0, &question).expect("sealed");
        let mut answers = Vec::new();
        for count in 0..=PROOFS_MAX.into() {
            for authority in [4, 16] {
                let option = [0xff; OPTION_MAX];
                let option = &option[..4 + 16 + authority + 16 * count];
                for hops in 0..=hops.len() {
                    let vni = Vni::from([0xff; 3]);
                    let hops = &[[0xff; 16]; 5][..hops];
                    let given =
                        GivenReply { vni, now: u32::MAX, receiving: any, option, hops, answers: &[], others: 3 };
                    answers.push(Reply::Given(given).encode().expect("there is room"));
                    let longest = vec![0xff; GIVEN_MAX - option.len() - 16 * hops.len()];
                    let both = GivenReply { answers: &longest, ..given };
                    answers.push(Reply::Given(both).encode().expect("there is room"));
                    let longer = [&longest[..], &[0; 4]].concat();
                    assert!(Reply::Given(GivenReply { answers: &longer, ..given }).encode().is_none());
                    assert!(Reply::Given(GivenReply { others: 4, ..given }).encode().is_none());
                }
            }
        }
        let text = "x".repeat(TEXT_MAX);
        for reason in Refusal::ALL {
            for length in 0..=TEXT_MAX {
                answers.push(Reply::Refused { reason, text: &text[..length] }.encode().expect("there is room"));
            }
        }
        assert!(Reply::Refused { reason: Refusal::Busy, text: &"x".repeat(TEXT_MAX + 1) }.encode().is_none());
        for reply in &answers {
            let answer = key.seal_answer(0, reply).expect("sealed");
            assert!(answer.len() <= request.len(), "{} after {}", answer.len(), request.len());
        }
        assert!(envelope(&request[..ANSWER_LEN]).is_none(), "a shorter one is no request");
    }
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(|a| IpAddr::from(a).to_canonical())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_question_is_read_as_it_was_written(
        network in "[!-~]{1,64}", sender in addresses(), sending in addresses(), receiver in addresses(), protocol in 1u8..,
        port: u16, sender_port: u16, answers: bool, path in proptest::option::of(0u8..4),
        change in (0usize..QUESTION_LEN, 1u8..),
    ) {
        let network = &*network;
        let question = Question { network, sender, sending, receiver, protocol, port, sender_port, answers, path };
        let mut plain = question.encode().expect("it can be asked");
        prop_assert_eq!(Question::decode(&plain), Some(question));
        plain[change.0] ^= change.1;
        if let Some(read) = Question::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain), "one form only");
        }
    }

    #[test]
    fn a_question_for_a_grant_is_read_as_it_was_written(
        address in addresses(), protocol in 1u8.., port: u16, consented: bool, time: u32,
        change in (0usize..QUESTION_LEN, 1u8..),
    ) {
        let question = GrantQuestion { to: Destination { address, protocol, port }, consented, time };
        let mut plain = question.encode().expect("it can be asked");
        prop_assert_eq!(AnyQuestion::decode(&plain), Some(AnyQuestion::Grant(question)));
        plain[change.0] ^= change.1;
        if let Some(read) = GrantQuestion::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain), "one form only");
        }
    }

    #[test]
    fn an_answer_with_a_grant_has_one_form(
        receiver in "[ -~é]{0,60}", rule in "[ -~é]{0,60}", treatment in 0usize..3, compress in 0u8..4, suites: u8,
        forward_secrecy: bool, rekey: u32, ipv4: Option<([u8; 4], u16)>, ipv6: Option<([u8; 16], u16)>,
        has_tunnel: bool, change in (0usize..REPLY_LEN, 1u8..),
    ) {
        prop_assume!(receiver.len() + rule.len() <= NAMES_MAX);
        let terms = TunnelTerms {
            treatment: treatment.checked_sub(1).map(|index| Treatment::ALL[index]),
            compress,
            suites: Suites(suites),
            forward_secrecy,
            rekey,
            ipv4: ipv4.filter(|(_, port)| *port != 0).map(|(address, port)| (address.into(), port)),
            ipv6: ipv6.filter(|(_, port)| *port != 0).map(|(address, port)| (address.into(), port)),
        };
        let mut plain = reply(&receiver, &rule, has_tunnel.then_some(terms)).encode().expect("there is room");
        let Some(GrantAnswer::Given(read)) = GrantAnswer::decode(&plain) else { panic!("it is read") };
        prop_assert_eq!((read.receiver, read.rule, read.tunnel), (&*receiver, &*rule, has_tunnel.then_some(terms)));
        prop_assert_eq!(read.encode(), Some(plain));
        plain[change.0] ^= change.1;
        if let Some(read) = GrantAnswer::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain), "one form only");
        }
    }

    #[test]
    fn noise_is_no_question_and_no_reply_or_has_one_form(
        question in proptest::array::uniform32(any::<u8>()), reply in proptest::array::uniform32(any::<u8>()),
    ) {
        let mut plain = [0; QUESTION_LEN];
        plain[..32].copy_from_slice(&question);
        if let Some(read) = Question::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain));
        }
        plain[0] = 2;
        if let Some(read) = GrantQuestion::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain));
        }
        let mut plain = [0; REPLY_LEN];
        plain[..32].copy_from_slice(&reply);
        plain[0] %= 9;
        if let Some(read) = Reply::decode(&plain) {
            prop_assert_eq!(read.encode(), Some(plain));
        }
    }

    #[test]
    fn a_datagram_opens_only_whole_and_only_by_its_key_on_its_way(
        mine: [u8; 32], other: [u8; 32], line: u64, counter: u64, at in 0usize..REQUEST_LEN, bit in 0u32..8,
    ) {
        prop_assume!(mine != other);
        let (mine, other) = (LineKey::new(mine), LineKey::new(other));
        let plain = [0x5a; QUESTION_LEN];
        let sealed = mine.seal_request(LineNumber(line), counter, &plain).expect("sealed");
        let outside = envelope(&sealed).expect("a request");
        prop_assert_eq!((outside.line.0, outside.counter), (line, counter));
        let mut own = sealed;
        prop_assert_eq!(mine.open_request(outside, &mut own), Some(&plain));
        prop_assert!(other.open_request(outside, &mut sealed.clone()).is_none());
        let mut changed = sealed;
        changed[at] ^= 1 << bit;
        if let Some(outside) = envelope(&changed) {
            prop_assert!(mine.open_request(outside, &mut changed).is_none());
        }
        let answer = mine.seal_answer(counter, &[0x5a; REPLY_LEN]).expect("sealed");
        prop_assert_eq!(mine.open_answer(&mut answer.clone()).map(|(counter, _)| counter), Some(counter));
        prop_assert!(other.open_answer(&mut answer.clone()).is_none());
        let mut changed = answer;
        changed[at % ANSWER_LEN] ^= 1 << bit;
        prop_assert!(mine.open_answer(&mut changed).is_none());
    }
}
