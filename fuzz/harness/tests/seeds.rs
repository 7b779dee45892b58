//! Writes the seeds that fuzzing starts with: `cargo test -p harness --test seeds -- --ignored`.

use engine::openflow::message::Message;
use engine::openflow::rules;
use lab::forge::{Packet, Tcp, flag};
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use wire::seal::{BlockHead, Compression, Counter, Direction, Index, RecordHeader, Unknown};
use wire::shim::{self, Content, SHIM_LEN};
use wire::{Destination, Epoch, Flags, GrantHeader, Handle, MasterKey, Suite, Token, reorder, tail};

const NOW: u32 = 1_800_000_000;

fn write(target: &str, name: &str, bytes: impl AsRef<[u8]>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("fuzz/").join("corpus").join(target);
    fs::create_dir_all(&folder).expect("the corpus can be written");
    fs::write(folder.join(name), bytes).expect("the corpus can be written");
}

fn decode(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).expect("hex")).collect()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn block(to: &Destination, nonce: u32) -> [u8; tail::BLOCK_LEN] {
    let ipv6 = to.address.is_ipv6();
    let epoch = Epoch::at(NOW.into(), 3600);
    let header = GrantHeader {
        suite: Suite::Siphash,
        flags: Flags::PORT.with(if ipv6 { Flags::IPV6 } else { Flags(0) }),
        epoch: epoch.on_wire(),
        prefix_length: if ipv6 { 128 } else { 32 },
        expires: NOW + 300,
        handle: Handle(u64::from(nonce) + 1),
    };
    let master = MasterKey::new(std::array::from_fn(|index| index as u8));
    let key = header.key(&master.verifier_key("edge-1", epoch).expect("short"), to, address("198.51.100.7"));
    tail::block(&Token::new(header, &key, NOW, nonce, to).encode())
}

/// Builds a DNS answer: the question's name and type, then entries of (owner, type, data). An empty owner becomes a
/// pointer to the question's name.
fn dns(flags: u16, asked: (&str, u16), entries: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
    let name = |text: &str| -> Vec<u8> {
        let labels = text.split('.').filter(|label| !label.is_empty());
        labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).chain([0]).collect()
    };
    let counts = [1, entries.len() as u16, 0, 0].map(u16::to_be_bytes).concat();
    let mut bytes =
        [&[0, 7][..], &flags.to_be_bytes(), &counts, &name(asked.0), &asked.1.to_be_bytes(), &[0, 1]].concat();
    for (owner, kind, data) in entries {
        bytes.extend(if owner.is_empty() { vec![0xc0, 12] } else { name(owner) });
        bytes
            .extend([&kind.to_be_bytes()[..], &[0, 1, 0, 0, 1, 44], &(data.len() as u16).to_be_bytes(), data].concat());
    }
    bytes
}

/// Returns packets of every form, each with its name, its frame without a token, and its frame with one if it can carry
/// one.
fn frames() -> Vec<(String, Vec<u8>, Option<Vec<u8>>)> {
    let mut frames = Vec::new();
    for (family, client, server) in
        [("ipv4", "198.51.100.7", "203.0.113.10"), ("ipv6", "2001:db8:ffff::7", "2001:db8::10")]
    {
        let packet = Packet::new(address(client), address(server));
        let syn_options = vec![2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let syn = packet.clone().tcp(Tcp { options: syn_options, ..Tcp::syn(40000, 22) });
        let udp = packet.clone().udp(40000, 443);
        let shapes = [
            ("syn", syn.clone(), Vec::new()),
            ("fast-open", syn.clone(), b"GET /".to_vec()),
            ("tagged", syn.clone().tag(0x88a8, 5).tag(0x8100, 6), Vec::new()),
            ("udp", udp.clone(), b"hello".to_vec()),
            ("udp-alone", udp.clone(), Vec::new()),
            ("udp-no-checksum", udp.clone().no_checksum(), b"even".to_vec()),
            ("ack", packet.clone().tcp(Tcp::new(40000, 22, flag::ACK)), b"data".to_vec()),
        ];
        for (name, shape, payload) in shapes {
            let to = Destination {
                address: address(server),
                protocol: if name.starts_with("udp") { 17 } else { 6 },
                port: if name.starts_with("udp") { 443 } else { 22 },
            };
            let carrying = [&payload[..], &block(&to, frames.len() as u32)].concat();
            let plain = shape.clone().payload(&payload).frame();
            frames.push((format!("{family}-{name}"), plain, Some(shape.payload(&carrying).frame())));
        }
        let quote = Packet::new(address(server), address(client)).tcp(Tcp::new(22, 40000, flag::ACK)).ip();
        let kind = if family == "ipv4" { 3 } else { 1 };
        let error = packet.clone().icmp(kind, 4, [0; 4]).payload(&quote).frame();
        frames.push((format!("{family}-icmp-error"), error, None));
        for (index, part) in udp.clone().payload(&[7; 64]).fragments(32).into_iter().enumerate() {
            frames.push((format!("{family}-fragment-{index}"), part, None));
        }
        let odd = if family == "ipv4" {
            vec![
                ("source-route", syn.clone().options(&[131, 7, 4, 203, 0, 113, 20])),
                ("router-alert", syn.options(&[148, 4, 0, 0])),
            ]
        } else {
            let route = [&[2, 1, 0, 0, 0, 0][..], &"2001:db8::20".parse::<std::net::Ipv6Addr>().expect("").octets()];
            vec![
                ("routing", syn.clone().extension(43, &route.concat())),
                ("options", syn.extension(0, &[1, 4, 0, 0, 0, 0]).extension(60, &[1, 4, 0, 0, 0, 0])),
            ]
        };
        frames.extend(odd.into_iter().map(|(name, packet)| (format!("{family}-{name}"), packet.frame(), None)));
    }
    frames
}

fn operation(kind: u8, frame: &[u8]) -> Vec<u8> {
    [&[kind][..], &(frame.len() as u16).to_be_bytes(), frame].concat()
}

/// Writes three seeds with a frame in a shim: with the frame's token, with a token of the published scheme, and with a
/// support option.
fn write_shims(name: &str, plain: &[u8], carrying: Option<&[u8]>) {
    let parsed = wire::packet::Packet::parse(plain);
    let wrapped = |content: &Content| {
        let mut frame = [plain, &[0; SHIM_LEN]].concat();
        let end = shim::insert(&mut frame, &parsed, content)?;
        frame.truncate(end);
        Some(frame)
    };
    let token = carrying.and_then(|frame| frame.last_chunk().copied()).unwrap_or([7; 36]);
    let (Some(ours), Some(ls), Some(support)) =
        (wrapped(&Content::Token(token)), wrapped(&Content::Ls([7; 37])), wrapped(&Content::Support))
    else {
        return;
    };
    let again = [operation(6, &ours), operation(4, &ours), operation(7, &ls), operation(7, &ls), operation(4, &ls)];
    write("verifier", &format!("{name}-shim"), [again.concat(), operation(4, &support), vec![1]].concat());
}

/// Writes a frame as it is and, if it is a segment, in a datagram, and with a block for datagrams and with urgent data.
fn write_datagrams(name: &str, frame: &[u8]) {
    write("reordered", name, frame);
    let packet = wire::packet::Packet::parse(frame);
    let turned = |frame: &[u8]| {
        let mut datagram = frame.to_vec();
        reorder::to_udp(&mut datagram, &packet).map(|()| datagram)
    };
    let Some(datagram) = turned(frame) else { return };
    write("reordered", &format!("{name}-datagram"), datagram);
    let mut urgent = frame.to_vec();
    urgent[packet.transport + 13] |= 32;
    urgent[packet.transport + 19] = 1;
    write("reordered", &format!("{name}-urgent"), urgent);
    if packet.opens() && frame.len() >= packet.payload + tail::BLOCK_LEN {
        let mut block = frame.to_vec();
        let at = packet.end - tail::BLOCK_LEN;
        block[at..at + 4].copy_from_slice(&tail::TCP_IN_UDP_MAGIC);
        write("reordered", &format!("{name}-block"), &block);
        write("reordered", &format!("{name}-block-datagram"), turned(&block).expect("a segment"));
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_packets() {
    for (name, plain, carrying) in frames() {
        write("packet", &name, carrying.as_ref().unwrap_or(&plain));
        if name.ends_with("-udp") {
            write("packet", &format!("{name}-cut"), &plain[..plain.len() - 1]);
            write("packet", &format!("{name}-padded"), [&plain[..], &[0; 9]].concat());
        }
        for (segment, cut) in [(0, 0), (2, 0), (0, 14)] {
            let is_plain = segment == 0 && cut == 0 && (name.ends_with("-syn") || name.contains("fragment"));
            if name.contains("udp") || is_plain {
                write(
                    "queued",
                    &format!("{name}-{segment}-{cut}"),
                    [&[segment, u8::from(cut > 0)], &plain[cut..]].concat(),
                );
            }
        }
        write("journey", &name, [&[1][..], &plain].concat());
        if name.ends_with("-syn") {
            write("journey", &format!("{name}-padded"), [&[1][..], &plain, &[0; 9]].concat());
        }
        write_datagrams(&name, carrying.as_ref().unwrap_or(&plain));
        write("tail", &name, [&[0x13; 36][..], carrying.as_ref().unwrap_or(&plain)].concat());
        if name.starts_with("ipv4") {
            let parsed = wire::packet::Packet::parse(&plain);
            let content = Content::Token([7; 36]);
            let mut wrapped = [&plain[..], &[0; SHIM_LEN]].concat();
            let wrapped = shim::insert(&mut wrapped, &parsed, &content).map_or(&plain[..], |end| &wrapped[..end]);
            write("shim", &name, [&content.encode()[..], wrapped].concat());
            write("journey", &format!("{name}-shim"), [&[65][..], &plain].concat());
            write_shims(&name, &plain, carrying.as_deref());
        }
        let Some(carrying) = carrying else { continue };
        if name.contains("tagged") || name.contains("checksum") {
            continue;
        }
        // The frame is admitted, replayed, played with a corrected tag, revoked, and swept.
        let story = [operation(4, &carrying), operation(4, &carrying), operation(6, &carrying), vec![2, 0, 40, 1]];
        write("verifier", &name, [&story.concat()[..], &operation(7, &carrying), &operation(4, &plain)].concat());
    }
    let (v4, v6) =
        ((address("203.0.113.10"), address("198.51.100.7")), (address("2001:db8::10"), address("2001:db8::7")));
    for (name, family, (from, to)) in [("ipv4", 0, v4), ("ipv6", 1, v6)] {
        let back = Packet::new(from, to);
        let tcp = back.clone().tcp(Tcp::new(22, 40000, flag::ACK)).ip();
        write("quoted", &format!("{name}-tcp"), [&[family, 0][..], &tcp].concat());
        write("quoted", &format!("{name}-tcp-behind"), [&[family, 8][..], &[0; 8], &tcp].concat());
        write("quoted", &format!("{name}-udp"), [&[family, 0][..], &back.clone().udp(443, 40000).ip()].concat());
        write("quoted", &format!("{name}-cut"), [&[family, 0][..], &tcp[..tcp.len() - 17]].concat());
    }
    let fragment =
        |offset| Packet::new(v6.0, v6.1).extension(60, &[1, 4, 0, 0, 0, 0]).extension(44, &[0, offset, 0, 0, 0, 9]);
    for (name, offset) in [("first", 1), ("later", 9)] {
        let quoted = fragment(offset).tcp(Tcp::new(22, 40000, flag::ACK)).ip();
        write("quoted", &format!("ipv6-extensions-{name}"), [&[1, 0][..], &quoted].concat());
    }
}

/// Writes seeds that play the same frames several times. In between, the clock jumps, the daemon restarts, epochs end,
/// and grants and sessions end.
#[test]
#[ignore = "writes the corpus"]
fn write_sequences() {
    let wanted = ["ipv4-syn", "ipv6-syn", "ipv4-udp", "ipv6-udp"];
    for (name, _, carrying) in frames().into_iter().filter(|(name, _, _)| wanted.contains(&name.as_str())) {
        let carrying = carrying.expect("a token");
        let (leap, back, far_back) =
            (|minutes| vec![8, minutes], |seconds| vec![16, seconds], |minutes| vec![24, minutes]);
        let (sweep, revoke, epoch_ends, restart, end_session) = (vec![1], vec![2], vec![9], vec![17], vec![10]);
        let (shown, fresh, other) = (operation(4, &carrying), operation(6, &carrying), operation(15, &carrying));
        let jumps =
            [&shown, &leap(90), &sweep, &fresh, &far_back(90), &shown, &back(40), &fresh, &vec![0, 200], &fresh];
        write("verifier", &format!("{name}-jumps"), jumps.map(Vec::as_slice).concat());
        let ends = [&fresh, &other, &revoke, &fresh, &restart, &other, &end_session, &other, &epoch_ends, &fresh];
        write("verifier", &format!("{name}-ends"), ends.map(Vec::as_slice).concat());
        let wrong = [&fresh, &revoke, &leap(90), &sweep, &restart, &far_back(90), &fresh, &operation(3, &carrying)];
        write("verifier", &format!("{name}-revoked-and-back"), wrong.map(Vec::as_slice).concat());
        let mut sealed = carrying.clone();
        let flags = sealed.len() - wire::token::TOKEN_LEN + 1;
        sealed[flags] |= Flags::SEALED.0;
        let sides = [operation(6, &sealed), operation(11, &sealed), operation(11, &carrying), operation(6, &carrying)];
        write("verifier", &format!("{name}-sides"), sides.concat());
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_asking() {
    let ask = include_str!("../../../crates/wire/tests/data/ask.json");
    let ask: Value = serde_json::from_str(ask).expect("ask.json is JSON");
    let fields = [
        ("requests", "question"),
        ("requests", "datagram"),
        ("answers", "reply"),
        ("answers", "datagram"),
        ("wrong_requests", "datagram"),
        ("wrong_answers", "datagram"),
        ("grant_requests", "question"),
        ("grant_requests", "datagram"),
        ("grant_answers", "reply"),
        ("grant_answers", "datagram"),
        ("wrong_grant_answers", "datagram"),
    ];
    for (list, field) in fields {
        for (index, case) in ask[list].as_array().expect("cases").iter().enumerate() {
            let hex = case[field].as_str().expect("hex");
            write("ask", &format!("{list}-{field}-{index}"), decode(hex));
        }
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_sealing() {
    let vectors = include_str!("../../../crates/wire/tests/data/seal.json");
    let vectors: Value = serde_json::from_str(vectors).expect("seal.json is JSON");
    let hex = |case: &Value, field: &str| decode(case[field].as_str().expect("hex"));
    for (index, case) in vectors["handshakes"].as_array().expect("cases").iter().enumerate() {
        let first = hex(case, "initiation");
        write("seal", &format!("initiation-{index}"), &first);
        write("seal", &format!("response-{index}"), hex(case, "response"));
        for (number, row) in case["records"].as_array().expect("records").iter().enumerate().step_by(3) {
            let mut record = hex(row, "record");
            write("seal", &format!("other-key-{index}-{number}"), &record);
            let header = RecordHeader::of(&record).expect("a record");
            if header.content.is_early() {
                write("seal", &format!("initiation-early-{index}-{number}"), [&first[..], &record].concat());
            }
            harness::keys(Direction::FromInitiator).seal(&header, &mut record).expect("it seals");
            write("seal", &format!("right-{index}-{number}"), record);
        }
    }
    for (index, case) in vectors["wrong_records"].as_array().expect("cases").iter().enumerate().step_by(3) {
        write("seal", &format!("wrong-{index}"), hex(case, "record"));
    }
    for (index, control) in vectors["handshakes"][0]["controls"].as_array().expect("controls").iter().enumerate() {
        write("seal", &format!("control-{index}"), decode(control.as_str().expect("hex")));
    }
    let unknown = Unknown { index: Index::new(9).expect("not 0"), counter: Counter::new(1, 2).expect("in bounds") };
    write("seal", "unknown", unknown.encode());
    let text =
        [&BlockHead { segment: 1400, partial: true }.encode()[..], &b"a packet that repeats ".repeat(30)].concat();
    let mut compressor = seal::Compressor::new().expect("memory");
    for how in Compression::ALL {
        let block =
            compressor.compress(seal::Mode::Always, &mut seal::Habit::default(), how, &text).expect("it shrinks");
        write("seal", how.name(), block);
        // Write a block in two parts, the last part first.
        let (front, back) = block.split_at(20);
        let part = |detail: u8, number: u8, bytes: &[u8]| [&[detail, 0, number, bytes.len() as u8], bytes].concat();
        write("seal", &format!("parts-{}", how.name()), [part(0x81, 8, back), part(0, 7, front)].concat());
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_people() {
    let header = |family: u8, ends: &[u8], tlvs: &[(u8, &str)]| {
        let mut body = ends.to_vec();
        for (kind, text) in tlvs {
            body.push(*kind);
            body.extend((text.len() as u16).to_be_bytes());
            body.extend(text.as_bytes());
        }
        [&b"\r\n\r\n\0\r\nQUIT\n\x21"[..], &[family], &(body.len() as u16).to_be_bytes(), &body].concat()
    };
    let four = [192, 0, 2, 9, 192, 0, 2, 20, 0x12, 0x34, 0, 80];
    let six: Vec<u8> = (0..36).collect();
    let person = [(0xe0, "al"), (0xe1, "pc"), (0xe2, "staff"), (0xe3, "web"), (0xe4, "00000000000000ff")];
    let unique = [(5, "al/00000000000000ff/10-1234")];
    write("relayed", "person", header(0x11, &four, &[&person[..], &unique].concat()));
    write("relayed", "person-ipv6", [header(0x21, &six, &person), b"GET /".to_vec()].concat());
    write("relayed", "stranger", header(0x11, &four, &[]));
    write("relayed", "in-part", header(0x11, &four, &person[..3]));
    write("relayed", "twice", header(0x11, &four, &[&person[..], &person].concat()));
    write("relayed", "other-types", header(0x11, &four, &[(4, "\0"), (0xee, "")]));
    write("relayed", "unix", header(0x31, &four, &person));
    let fields = ["person: alice", "device: laptop", "receiver: git", "rule: Z%C3%BCrich 100 %25", "grant: 00"];
    let fields = fields.map(|field| format!("x-vouchsafe-{field}\r\n")).concat();
    write("relayed", "answer", format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    write("relayed", "answer-refused", "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno\n");
}

#[test]
#[ignore = "writes the corpus"]
fn write_switches() {
    let greeting = [Message::Hello, Message::FeaturesReply { datapath: 7 }];
    let [rule] = &rules::standing(&[], &[], harness::GENERATION)[..] else { panic!("one rule") };
    let say = |name: &str, cut: u8, messages: &[Message]| {
        let said = (1..).zip(greeting.iter().chain(messages));
        let said: Vec<u8> = said.flat_map(|(xid, message)| message.encode(xid).expect("it is short")).collect();
        write("openflow", name, [&[cut][..], &said].concat());
    };
    say("greeting", 3, &[Message::BarrierReply, Message::EchoRequest(b"there?".to_vec()), Message::Other(19)]);
    say("errors", 9, &[Message::Error { class: 4, code: 6 }, Message::Error { class: 5, code: 1 }]);
    write("openflow", "tls", [0, 22, 3, 1, 0, 200, 1, 0, 0]);
    for (name, plain, carrying) in frames() {
        let up = |in_port, frame: &[u8]| Message::PacketIn {
            cookie: rule.cookie,
            in_port,
            total_len: frame.len() as u16,
            frame: frame.to_vec(),
        };
        // Elevate each frame by tail and by shim, and again when it already has a token.
        let again: Vec<_> = [Some(plain.clone()), carrying].into_iter().flatten().collect();
        let messages: Vec<_> = again.iter().flat_map(|frame| [up(2, frame), up(3, frame)]).collect();
        say(&name, 60, &messages);
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_stories() {
    let frames = frames();
    let find = |name: &str| {
        let (_, plain, carrying) = frames.iter().find(|(other, ..)| other == name).expect("a frame");
        (plain.clone(), carrying.clone().unwrap_or_default())
    };
    for family in ["ipv4", "ipv6"] {
        let (_, syn) = find(&format!("{family}-syn"));
        let (datagram, udp) = find(&format!("{family}-udp"));
        let other_port = |port: u8| {
            let mut frame = syn.clone();
            frame[if family == "ipv4" { 35 } else { 55 }] = port;
            operation(6, &frame)
        };
        let (error, _) = find(&format!("{family}-icmp-error"));
        let fragments: Vec<_> =
            [0, 1].iter().map(|part| operation(4, &find(&format!("{family}-fragment-{part}")).0)).collect();
        let mut unknown_suite = syn.clone();
        let at = syn.len() - 36;
        unknown_suite[at] = 0x1f;
        let mut long_lived = syn.clone();
        long_lived[at + 4] += 1;
        let first = operation(4, &syn);
        let wait = |seconds: u32| [0, 255].repeat(seconds as usize / 255);
        for (name, story) in [
            ("icmp-error", [&first[..], &operation(4, &error)].concat()),
            ("fragments", [&operation(4, &udp)[..], &fragments.concat(), &operation(4, &datagram)].concat()),
            ("flow-limit", [other_port(1), vec![0, 1], other_port(2), vec![0, 1], other_port(3)].concat()),
            ("clock-skew", [&[0, 40][..], &first].concat()),
            ("expired", [&wait(510)[..], &first].concat()),
            ("unknown-epoch", [&wait(7650)[..], &first].concat()),
            ("unknown-suite", operation(4, &unknown_suite)),
            ("lifetime-too-long", operation(4, &long_lived)),
            ("lone-fragment", fragments[1].clone()),
        ] {
            write("verifier", &format!("{family}-story-{name}"), story);
        }
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_vectors() {
    let text = include_str!("../../../crates/wire/tests/data/tokens.json");
    let all: Value = serde_json::from_str(text).expect("tokens.json is JSON");
    for (index, case) in all["tokens"].as_array().expect("cases").iter().enumerate().take(30) {
        let bytes = decode(case["token"].as_str().expect("token"));
        write("token", &format!("vector-{index}"), &bytes);
        write("grant_header", &format!("vector-{index}"), &bytes[..16]);
    }
    let proofs = include_str!("../../../crates/wire/tests/data/proofs.json");
    let proofs: Value = serde_json::from_str(proofs).expect("proofs.json is JSON");
    for (index, case) in proofs["packets"].as_array().expect("cases").iter().enumerate() {
        if let (0, Some(frame)) = (index % 3, case["steps"][0]["frame"].as_str()) {
            write("proof", &format!("case-{index}"), decode(frame));
        }
    }
    for (index, case) in all["ls"].as_array().expect("cases").iter().enumerate() {
        for name in ["option", "key_transfer_option", "support_option"] {
            write("option", &format!("{name}-{index}"), decode(case[name].as_str().expect("an option")));
        }
    }
    write("option", "token", Content::Token([0x13; 36]).encode());
    write("option", "token-and-more", [Content::Token([0x13; 36]).encode()[..39].to_vec(), vec![1]].concat());
}

#[test]
#[ignore = "writes the corpus"]
fn write_texts() {
    let example = include_str!("../../../crates/authority/policy.example.toml");
    let receiver =
        "[[receivers]]\nname = \"a\"\naddress = \"203.0.113.0/24\"\nservices = [\"all\"]\nverifier = \"v\"\n";
    let rule = "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"a\"\n";
    let terms =
        "granularity = \"network\"\nlifetime = \"5m\"\nsingle = true\nbind_source = true\nsuite = \"aes-cmac\"\n";
    write("policy", "example", example);
    write("policy", "wide", format!("{receiver}{rule}{terms}"));
    write(
        "policy",
        "deny",
        format!(
            "[groups]\ng = [\"alice\"]\n{receiver}{rule}[[rules]]\naction = \"deny\"\nwho = [\"group:g\", \"person:bob\"]\nto = [\"a\"]\n"
        ),
    );
    let windows = "priority = 300\ngranularity = \"flow\"\nreply = true\nwhen = [{ days = \"mon-fri\", hours = \
                   [\"08:00-12:00\", \"22:00-06:00\"], zone = \"Europe/Zurich\" }, { from = 2026-01-01, until = \"2026-02-01\" }]\n";
    let who = rule.replace("\"everyone\"", "[\"tag:laptops\", \"address:192.0.2.0/24\", \"address:2001:db8::1\"]");
    write("policy", "windows", format!("{receiver}{who}{windows}"));
    let test = "[[tests]]\nwho = [\"person:bob\", \"tag:laptops\"]\nfrom = \"192.0.2.7\"\nto = \"203.0.113.10 tcp/22\"\n\
                at = 2026-03-02T09:00:00Z\nexpect = \"allow\"\n";
    write("policy", "tests", format!("{receiver}{who}{windows}{test}"));
    write("policy", "faults", format!("{receiver}{rule}{terms}lifetme = 5\n"));
    write("policy", "empty", "");
    let text = |record: &str| [&[record.len() as u8], record.as_bytes()].concat();
    let record = "v=vouchsafe1; authority=https://vouch.example.org:8443; protects=203.0.113.0/28,2001:db8::/64";
    let (a, txt, cname, soa) = (1, 16, 5, 6);
    let own = ("_vouchsafe.example.org", txt);
    write("answer", "record", dns(0x8180, own, &[("", txt, text(record))]));
    write("answer", "alias", dns(0x8180, own, &[("", cname, vec![1, b'a', 0]), ("a", txt, text(record))]));
    write("answer", "nothing", dns(0x8183, own, &[("example.org", soa, [&[0, 0][..], &[1; 20]].concat())]));
    write("answer", "truncated", dns(0x8380, own, &[]));
    let git = ("git.example.org", a);
    let address = ("", a, vec![203, 0, 113, 10]);
    write("answer", "overheard", dns(0x8580, git, &[address, ("example.org", txt, text(record))]));
    write("answer", "ring", dns(0x8580, git, &[("", cname, vec![0xc0, 33]), ("", a, vec![0xc0, 12])]));
    write("answer", "text", record);
    write("policy", "names", receiver.replace("\"a\"", "\"é\"").replace("/24", "/33"));
    write(
        "document",
        "all",
        "text = \"a\"\nlist = [\"a\", \"b\"]\nyes = true\nnumber = 0x7\nseconds = \"5m\"\n[[tables]]\ntext = \"b\"\nlist = []\n",
    );
    write("document", "wrong-types", "text = 1\nlist = [1]\nyes = \"no\"\nnumber = -1\nseconds = 5\ntables = {}\n");
    write("document", "unknown", "txet = \"ü\"\nlist = \"a\"\n");
    write("document", "broken", "text = \"\nlist = [\n");
    write("document", "duration", "90s");
    write("document", "target", "[2001:db8::/32]:443");
    let receiver =
        r#"{"name":"ssh","prefix":"203.0.113.10/32","services":[{"protocol":6,"first_port":22,"last_port":22}]}"#;
    let owner = r#""handle":"00ff00ff00ff00ff","person":"alice","device":"laptop","receiver":"ssh","rule":"policy.toml:9 staff","issued":1,"expires":2"#;
    let flow = r#"{"client":"203.0.113.5","client_port":4711,"server":"2001:db8::1","server_port":22,"protocol":6,"handle":"00ff00ff00ff00ff","since":1,"seen":2,"packets":3,"bytes":4}"#;
    for (name, json) in [
        ("hello", r#"{"event":"hello"}"#.to_owned()),
        ("revoked", r#"{"event":"revoked","grants":[{"handle":"00000000000000aa","expires":1800000000}]}"#.to_owned()),
        ("granted", format!(r#"{{"event":"granted","owner":{{{owner}}}}}"#)),
        ("owner", format!("{{{owner}}}")),
        ("grant-request", r#"{"address":"203.0.113.10","protocol":6,"port":22}"#.to_owned()),
        ("login", r#"{"person":"alice","password":"x","totp":"123456","device":"laptop"}"#.to_owned()),
        ("destinations", format!(r#"{{"destinations":[{receiver}],"now":5}}"#)),
        (
            "config",
            format!(
                r#"{{"verifier":"v","epoch_length":3600,"max_lifetime":3600,"receivers":[{receiver}],"revoked":[],"now":5}}"#
            ),
        ),
        ("keys", r#"{"keys":[{"epoch":5,"key":"00"}],"now":5}"#.to_owned()),
        ("explain", r#"{"person":"alice","address":"2001:db8::1","protocol":17,"port":53}"#.to_owned()),
        ("explanation", r#"{"allowed":true,"receiver":"ssh","rule":null,"text":"yes"}"#.to_owned()),
        (
            "report",
            format!(
                r#"{{"state":"trying","keys_until":7,"admitted":1,"passed":2,"drops":[{{"reason":1,"packets":3}}],"live":1,"flows":[{flow}]}}"#
            ),
        ),
        ("problem", r#"{"type":"denied","title":"no","status":403}"#.to_owned()),
    ] {
        write("api", name, json);
    }
}
