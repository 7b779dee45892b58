//! Tests that `vouchsafe inspect` and the dissector for Wireshark agree with each other and with the packets that were
//! sent.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::capture::pcap;
use lab::forge::{Packet, Tcp, flag};
use lab::mint::{Mint, now};
use lab::service::{ask, call, exchange};
use lab::world::{
    AUTHORITY, AUTHORITY_PORT, Agent, Authority, ECHO, FRONT4, INSIDE4, Network, Services, Transfer, VERIFIER,
    Verifier, Way, World, policy,
};
use lab::{Capture, poll, process, test, vouchsafe};
use serde_json::Value;
use wire::shim::Content;
use wire::token::TOKEN_LEN;
use wire::{ClientKey, Destination, Epoch, LsToken, MasterKey, Pair, ServerSecret, Token, reorder, tail};

const SOON: Duration = Duration::from_secs(20);
/// Length of an epoch in seconds, the authority's default.
const EPOCH_LENGTH: u32 = 3600;
const HANDLE: u64 = 0x0123_4567_89ab_cdef;
const PAIR: Pair = Pair { unique_id: [1, 2, 3, 4, 5], nonce1: [0xaa, 0xbb] };
const RECORD: &str = "v=vouchsafe1; authority=https://login.example; protects=203.0.113.0/28";

/// Returns the output of `vouchsafe inspect` for each packet, as JSON.
fn inspected(file: &Path) -> Result<Vec<Value>> {
    let text = process::output(Command::new(vouchsafe()).args(["inspect", "--json"]).arg(file))?;
    text.lines().map(|line| serde_json::from_str(line).context("a line of JSON")).collect()
}

/// Returns these fields of each packet as tshark shows them with the dissector of this repository.
fn dissected(file: &Path, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/wireshark/vouchsafe.lua");
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .args(["-n", "-T", "fields", "-E", "separator=|", "-r"])
        .arg(file);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let text = process::output(&mut tshark)?;
    Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

fn text(packet: &Value, name: &str) -> String {
    packet[name].as_str().map_or_else(|| packet[name].to_string(), str::to_owned)
}

/// Builds a DNS answer with one TXT record.
fn answer() -> Vec<u8> {
    let mut message = vec![0, 1, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    for label in ["_vouchsafe", "example"] {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 16, 0, 1, 0xc0, 12, 0, 16, 0, 1, 0, 0, 1, 44, 0, RECORD.len() as u8 + 1, RECORD.len() as u8]);
    message.extend(RECORD.as_bytes());
    message
}

#[test]
fn every_form_reads_the_same_here_and_in_wireshark() {
    test(|| {
        let (alice, front): (IpAddr, IpAddr) = ("192.0.2.10".parse()?, "203.0.113.10".parse()?);
        let (alice6, front6): (IpAddr, IpAddr) = ("2001:db8::10".parse()?, "2001:db8:1::10".parse()?);
        let mut mint = Mint::new(MasterKey::new([7; 32]), "dc1");
        let mut block = |to: IpAddr, from: IpAddr| {
            let to = Destination { address: to, protocol: wire::packet::TCP, port: 443 };
            mint.block(&mint.grant(HANDLE, to, from))
        };
        let (block4, block6) = (block(front, alice)?, block(front6, alice6)?);
        let key = ClientKey::of(PAIR, b"a secret");
        let contents = [
            Content::Ls(LsToken::new(PAIR, 0x1234, &key).encode()),
            Content::Token(*block4.last_chunk().context("a token")?),
        ];
        let syn = Packet::new(alice, front).tcp(Tcp::syn(40_000, 443));
        let mut frames = vec![
            syn.clone().payload(&block4).frame(),
            Packet::new(alice6, front6).udp(40_000, 443).payload(&[b"hello", &block6[..]].concat()).frame(),
        ];
        frames.extend(contents.iter().map(|content| syn.shimmed(&content.encode()).frame()));
        frames.push(Packet::new(front, alice).udp(53, 40_001).payload(&answer()).frame());
        frames.push(syn.frame());
        frames.extend(other_carriers(&syn, block4.last_chunk().context("a token")?)?);
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("forms.pcap");
        fs::write(&file, pcap(&frames))?;

        let ours = inspected(&file)?;
        let expected = [
            ("tail", "token"),
            ("tail", "token"),
            ("shim", "ls_token"),
            ("shim", "token"),
            ("null", "discovery"),
            ("null", "null"),
            ("stream", "token"),
            ("fast_open", "token"),
            ("tcp_in_udp", "token"),
            // A segment with the block that is not turned into a datagram. Then a later segment in a datagram.
            ("null", "null"),
            ("null", "null"),
        ];
        for (packet, (carrier, content)) in ours.iter().zip(expected) {
            ensure!(text(packet, "carrier") == carrier && text(packet, "content") == content, "{packet}");
        }
        ensure!(ours.len() == expected.len(), "{ours:?}");
        ensure!(ours[3]["remarks"].to_string().contains("replayed: packet 1"), "{}", ours[3]);
        ensure!(ours[5]["remarks"].to_string().contains("no_token"), "{}", ours[5]);
        ensure!(ours[4]["record"] == RECORD, "{}", ours[4]);
        ensure!([6, 7, 8].map(|at| ours[at]["added"].as_u64()) == [40, 52, 40].map(Some), "{ours:#?}");
        let in_datagrams: Vec<_> = (0..ours.len()).filter(|at| ours[*at]["datagram"] == true).collect();
        ensure!(in_datagrams == [8, 10] && ours[10]["protocol"] == "tcp" && ours[10]["flow"] == 1, "{ours:#?}");

        let token = Token::decode(block4.last_chunk().context("a token")?, false).ok().context("a token")?;
        let theirs = dissected(
            &file,
            &[
                "vouchsafe.carrier",
                "vouchsafe.handle",
                "vouchsafe.nonce",
                "vouchsafe.tag",
                "vouchsafe.ls.unique_id",
                "vouchsafe.ls.nonce2",
                "vouchsafe.discovery",
            ],
        )?;
        let handle = format!("{HANDLE:#018x}");
        for at in [0, 3] {
            ensure!(theirs[at][1] == handle && theirs[at][3] == hex::encode(token.tag), "{:?}", theirs[at]);
            ensure!(theirs[at][2] == format!("{:#010x}", token.nonce), "{:?}", theirs[at]);
        }
        for (packet, line) in ours.iter().zip(&theirs) {
            let same = |ours: &str, theirs: &str| packet[ours].is_null() == theirs.is_empty();
            ensure!(same("carrier", &line[0]) && same("tag", &format!("{}{}", line[3], line[5])), "{packet}: {line:?}");
            ensure!(line[4].is_empty() || line[4] == text(packet, "unique_id"), "{packet}: {line:?}");
        }
        ensure!(theirs[2][5] == "0x1234" && theirs[4][6] == RECORD, "{theirs:?}");
        ensure!(tail::BLOCK_LEN == 40 && ours[0]["added"] == 40 && ours[3]["added"] == 60);
        Ok(())
    });
}

/// Returns packets with a token by the carriers of which few packets are seen: `stream`, `fast_open`, and `tcp_in_udp`.
/// Then returns the segment that the last of these carries, and a later segment, in a datagram, too.
fn other_carriers(syn: &Packet, token: &[u8; TOKEN_LEN]) -> Result<[Vec<u8>; 5]> {
    let plain = syn.frame();
    let mut option = [&plain[..], &[0; tail::FAST_OPEN_ADDS]].concat();
    let added = tail::append_with_option(&mut option, &wire::packet::Packet::parse(&plain), token);
    option.truncate(added.context("no room for an option")?);
    let turned = |segment: &[u8]| -> Result<Vec<u8>> {
        let mut datagram = segment.to_vec();
        reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(segment)).context("no segment")?;
        Ok(datagram)
    };
    let segment = syn.clone().payload(&tail::tcp_in_udp_block(token)).frame();
    let later = syn.clone().tcp(Tcp::new(40_000, 443, flag::ACK | flag::PSH)).payload(b"data").frame();
    let in_stream = syn.clone().payload(&tail::stream_block(token)).frame();
    Ok([in_stream, option, turned(&segment)?, segment, turned(&later)?])
}

/// `vouchsafe inspect` and the dissector read the published messages of a tunnel alike, and the keys that an end
/// exported open the records of their phases.
#[test]
fn messages_of_a_sealed_tunnel_read_the_same_here_and_in_wireshark() {
    test(|| {
        let vectors: Value = serde_json::from_str(include_str!("../../crates/wire/tests/data/seal.json"))?;
        let tunnel = &vectors["handshakes"][0];
        let bytes = |value: &Value| hex::decode(value.as_str().unwrap_or_default()).context("hex");
        let (client, server): (IpAddr, IpAddr) = ("192.0.2.10".parse()?, "192.0.2.9".parse()?);
        // Do not use the port of the vectors, because Wireshark takes it for IPsec's.
        let to_server = |data: &[u8]| Packet::new(client, server).udp(40_000, 4499).payload(data).frame();
        let to_client = |data: &[u8]| Packet::new(server, client).udp(4499, 40_000).payload(data).frame();
        let records = tunnel["records"].as_array().context("records")?;
        let of_phase = |phase: u64| records.iter().filter(move |record| record["phase"] == phase);
        let early = of_phase(0).next().context("an early record")?;
        let begin = [bytes(&tunnel["initiation"])?, bytes(&early["record"])?].concat();
        let mut frames = vec![to_server(&begin), to_client(&bytes(&tunnel["response"])?)];
        for record in of_phase(1) {
            let record_bytes = bytes(&record["record"])?;
            frames.push(if record["direction"] == 0 { to_server(&record_bytes) } else { to_client(&record_bytes) });
        }
        frames.push(Packet::new(client, server).udp(40_001, 4499).payload(&[4; 40]).frame());
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("tunnel.pcap");
        fs::write(&file, pcap(&frames))?;

        let ours = inspected(&file)?;
        let fields = ["message", "treatment", "suite", "index", "number"].map(|name| format!("vouchsafe.seal.{name}"));
        let theirs = dissected(&file, &fields.each_ref().map(String::as_str))?;
        ensure!(ours.len() == frames.len() && theirs.len() == frames.len(), "{} {}", ours.len(), theirs.len());
        ensure!(ours[0]["tunnel"]["message"] == "initiation" && theirs[0][0] == "1,3", "{} {:?}", ours[0], theirs[0]);
        ensure!(ours[1]["tunnel"]["message"] == "response" && theirs[1][0] == "2", "{} {:?}", ours[1], theirs[1]);
        for ((packet, line), record) in ours[2..].iter().zip(&theirs[2..]).zip(of_phase(1)) {
            let tunnel = &packet["tunnel"];
            let [kind, suite, number] = ["type", "suite", "number"].map(|key| record[key].to_string());
            ensure!(line[0] == kind && line[2] == suite, "{line:?}");
            ensure!(line[3] == format!("0x{}", text(tunnel, "index")), "{line:?} {packet}");
            ensure!(line[4] == number && tunnel["number"] == record["number"], "{line:?} {packet}");
            let treatment = if line[1] == "1" { "authenticate" } else { "encrypt" };
            ensure!(tunnel["treatment"] == treatment && tunnel["opened"].is_null(), "{line:?} {packet}");
        }
        let last = ours.last().context("packets")?;
        ensure!(last["tunnel"].is_null(), "bytes of another flow are no record: {last}");

        let secrets = tunnel["secrets"].as_array().context("secrets")?;
        let indices = tunnel["indices"][1].as_array().context("indices")?;
        let index = |end: usize| indices[end].as_u64().map(|index| format!("{index:08x}")).context("an index");
        let keys = dir.path().join("keys");
        let lines = [
            format!("EARLY {} {}", index(0)?, secrets[0].as_str().context("a secret")?),
            format!("TO_RESPONDER {} {}", index(1)?, secrets[1].as_str().context("a secret")?),
            format!("TO_INITIATOR {} {}", index(0)?, secrets[1].as_str().context("a secret")?),
        ];
        let opened = |lines: &[String]| -> Result<Vec<Value>> {
            fs::write(&keys, lines.join("\n"))?;
            let mut command = Command::new(vouchsafe());
            let text = process::output(command.args(["inspect", "--json", "--keys"]).arg(&keys).arg(&file))?;
            text.lines().map(|line| serde_json::from_str(line).context("a line of JSON")).collect()
        };
        let none = "closed, because no key in the file opens this record";
        let all = opened(&lines)?;
        ensure!(text(&all[0]["tunnel"]["early"], "opened") != none, "{}", all[0]);
        for (packet, record) in all[2..].iter().zip(of_phase(1)) {
            ensure!(text(&packet["tunnel"], "opened") != none, "{packet}: {record}");
        }
        for packet in &opened(&lines[..1])?[2..frames.len() - 1] {
            ensure!(packet["tunnel"]["opened"] == none, "{packet}");
        }
        Ok(())
    });
}

#[test]
fn an_exchange_of_alice_is_explained_packet_by_packet() {
    test(|| {
        let network = Network::new(Way::Direct)?;
        let services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        let _verifier = Verifier::start_with(&network.server, &authority, &[])?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        let to: SocketAddr = format!("{FRONT4}:{ECHO}").parse()?;
        let cable = Capture::start(&network.internet, "dc")?;
        let mut stream = call(&network.alice, to, SOON)?;
        exchange(&mut stream)?;
        ask(&network.alice, to, SOON)?;
        drop(stream);
        let file = cable.stop()?;
        drop(services);

        let ours = inspected(&file)?;
        let first = |protocol: &str| {
            let from = format!("{INSIDE4}:");
            ours.iter()
                .find(|packet| packet["protocol"] == protocol && text(packet, "source").starts_with(&from))
                .context("a packet")
        };
        for protocol in ["tcp", "udp"] {
            let packet = first(protocol)?;
            ensure!(
                packet["content"] == "token"
                    && packet["carrier"] == "tail"
                    && packet["remarks"] == serde_json::json!([]),
                "{packet}"
            );
            let later =
                ours.iter().filter(|later| later["flow"] == packet["number"] && later["number"] != packet["number"]);
            ensure!(
                later.clone().count() > 0 && later.clone().all(|later| later["added"] == 0 || protocol == "udp"),
                "{ours:#?}"
            );
        }
        let theirs = dissected(&file, &["frame.number", "vouchsafe.handle"])?;
        for (packet, line) in ours.iter().zip(&theirs) {
            let handle = packet["handle"].as_str().map(|handle| format!("0x{handle}")).unwrap_or_default();
            ensure!(packet["number"] == line[0].parse::<u64>()? && line[1] == handle, "{packet}: {line:?}");
        }
        ensure!(theirs.len() == ours.len(), "{} {}", theirs.len(), ours.len());
        Ok(())
    });
}

/// Returns the client keys that a pair may have had in the last two epochs.
fn client_keys(authority: &Authority, pair: Pair) -> Result<Vec<ClientKey>> {
    let (master, now) = (authority.master_key()?, Epoch::at(now().into(), EPOCH_LENGTH));
    let key = |epoch| {
        let secret = ServerSecret::of(&master.verifier_key(VERIFIER, epoch)?)?;
        Some(ClientKey::of(pair, secret.bytes()))
    };
    [Epoch(now.0 - 1), now].into_iter().map(|epoch| key(epoch).context("a key")).collect()
}

#[test]
fn a_key_in_band_is_explained_and_not_shown() {
    test(|| {
        let network = Network::new(Way::Direct)?;
        let transfer = Transfer::start(&network.authority)?;
        let world = World::with_keys_in_band(network, &transfer.setting(), true)?;
        let cable = Capture::start(&world.network.internet, "auth")?;
        world.agent.login(&world.authority, "alice")?;
        call(&world.network.alice, format!("{FRONT4}:{ECHO}").parse()?, SOON)?;
        let handle = text(&world.agent.grants()?["grants"][0], "handle");
        let complete =
            || cable.lines(&format!("ip proto 4 and src host {AUTHORITY}")).is_ok_and(|lines| lines.len() == 1);
        ensure!(poll(SOON, complete), "{:?}", cable.lines("ip proto 4"));
        let file = cable.stop()?;

        let ours = inspected(&file)?;
        let of = |content: &str| ours.iter().filter(|packet| packet["content"] == content).collect::<Vec<_>>();
        let (asked, keys) = (of("support"), of("key_transfer"));
        ensure!(!asked.is_empty() && ours.iter().filter(|packet| packet["added"] != 0).count() == asked.len() + 1);
        for packet in asked {
            let opens = packet["tcp_flags"] == serde_json::json!(["SYN"]);
            ensure!(opens && packet["added"] == 60 && text(packet, "source").starts_with(INSIDE4), "{packet}");
        }
        let [key] = keys[..] else { anyhow::bail!("{keys:?}") };
        ensure!(key["carrier"] == "shim" && key["added"] == 60, "{key}");
        ensure!(text(key, "source") == format!("{AUTHORITY}:{AUTHORITY_PORT}"), "{key}");
        ensure!(format!("00{}{}", text(key, "unique_id"), text(key, "nonce1")) == handle, "{key} is not of {handle}");
        ensure!(key["remarks"].to_string().contains("contains an unencrypted client key"), "{key}");

        // The capture contains the key itself, but the output must not.
        let pair = Pair::from_bytes(*u64::from_str_radix(&handle, 16)?.to_be_bytes().last_chunk().context("a pair")?);
        let (secrets, captured) = (client_keys(&world.authority, pair)?, fs::read(&file)?);
        let seen = |key: &&ClientKey| captured.windows(key.bytes().len()).any(|bytes| bytes == key.bytes());
        let secret = hex::encode(secrets.iter().find(seen).context("no client key is in the capture")?.bytes());
        ensure!(!ours.iter().any(|packet| packet.to_string().contains(&secret)), "the key is shown");
        let theirs =
            dissected(&file, &["frame.number", "vouchsafe.carrier", "vouchsafe.ls.unique_id", "vouchsafe.ls.nonce1"])?;
        ensure!(theirs.len() == ours.len(), "{} {}", theirs.len(), ours.len());
        for (packet, line) in ours.iter().zip(&theirs) {
            ensure!(packet["carrier"].is_null() == line[1].is_empty(), "{packet}: {line:?}");
            let ids = ["unique_id", "nonce1"].map(|id| packet[id].as_str().unwrap_or_default());
            ensure!(line[2..] == ids, "{packet}: {line:?}");
        }
        Ok(())
    });
}

#[test]
fn what_is_no_capture_is_refused_with_the_reason() {
    test(|| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("it.pcap");
        let whole = pcap(&[Packet::new("192.0.2.1".parse()?, "192.0.2.2".parse()?).udp(1, 2).frame()]);
        let mut elsewhere = whole.clone();
        elsewhere[20] = 105;
        for (bytes, reason) in [
            (&b"hello, world, this is a text and no capture"[..], "is not a packet capture"),
            (b"", "is empty"),
            (&whole[..whole.len() - 1], "is cut short after packet 0"),
            (&elsewhere, "unsupported link type 105"),
        ] {
            fs::write(&file, bytes)?;
            let output = Command::new(vouchsafe()).arg("inspect").arg(&file).output()?;
            let error = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(2) && error.contains(reason), "{error}");
        }
        fs::write(&file, &whole)?;
        let output = Command::new(vouchsafe()).arg("inspect").arg(&file).output()?;
        ensure!(output.status.code() == Some(1), "nothing of ours in it, and yet {}", output.status);
        Ok(())
    });
}
