//! One table of cases through the Rust decision and through the kernel program.

mod agents;
mod table;
mod world;

use agents::Agents;
use datapath::hook::Hook;
use datapath::verifier::Sizes;
use engine::agent::insertion::Action;
use engine::verifier::{CLOCK_SKEW_MAX, Outcome};
use std::time::{Duration, Instant};
use table::agent::Known;
use table::{Case, Step, Transport};
use wire::map::{SecretEntry, VerifierConfig, counter};
use wire::shim::Content;
use wire::{Carrier, Holder, Pair, ServerSecret};
use world::{Deciders, Grant, LsPair, NOW};

/// Time within which a packet is certainly decided in the second that the clock was set to a fifth into.
const IN_TIME: Duration = Duration::from_millis(700);
/// How often a case is checked on a busy machine.
const TRIES: u32 = 5;

/// Checks each case. A case that fails is checked again if a packet of it was not decided within the second that the
/// clock was set to, because another process had the processor meanwhile.
fn check(deciders: &mut Deciders, cases: &[Case], failures: &mut Vec<String>) {
    for case in cases {
        let mut tries = 0;
        let failed = loop {
            let mut slowest = Duration::ZERO;
            let failed = check_one(deciders, case, &mut slowest);
            tries += 1;
            if failed.is_empty() || slowest < IN_TIME || tries == TRIES {
                break failed;
            }
        };
        failures.extend(failed);
    }
}

/// Checks one case and returns what failed; `slowest` becomes the longest time in which a packet was decided.
fn check_one(deciders: &mut Deciders, case: &Case, slowest: &mut Duration) -> Vec<String> {
    let mut failures = Vec::new();
    deciders.forget();
    let mut now = NOW;
    deciders.set_clock(now);
    for (index, step) in case.steps.iter().enumerate() {
        match step {
            Step::Wait(seconds) => {
                let end = now + seconds;
                while now < end {
                    now = end.min(now + CLOCK_SKEW_MAX);
                    deciders.set_clock(now);
                }
            }
            Step::Leap(seconds) => {
                now += seconds;
                deciders.set_clock(now);
            }
            Step::Back(seconds) => {
                now -= seconds;
                deciders.set_clock(now);
            }
            Step::Revoke(handle) => deciders.revoke(*handle, now + 3600),
            Step::RevokeUntil(handle, expires) => deciders.revoke(*handle, *expires),
            Step::ShutOut(account) => deciders.shut_out(*account, now + 3600),
            Step::End(holder) => deciders.end_session(*holder, now + 3600),
            Step::Tell(pair) => deciders.tell(pair),
            Step::Sweep => deciders.sweep(now),
            Step::Inside { packet, outcome, out } => {
                deciders.set_clock(now);
                let began = Instant::now();
                let decided = deciders.verify_inside(packet, now);
                *slowest = began.elapsed().max(*slowest);
                for (who, (got, left)) in ["rust", "kernel"].into_iter().zip(decided) {
                    let place = format!("{} ({}), step {index}, {who}, inside", case.name, case.clause);
                    if got != *outcome {
                        failures.push(format!("{place}: {got:?}, not {outcome:?}\n  {:.200}", hex::encode(packet)));
                    } else if left != *out {
                        let (left, out) = (hex::encode(left), hex::encode(out));
                        failures.push(format!("{place}: the packet is\n  {left}, not\n  {out}"));
                    }
                }
            }
            Step::Frame { frame, .. } if !world::runs(deciders.kernel.hook(), frame) => {}
            Step::Frame { frame, outcome, out } => {
                deciders.set_clock(now);
                let began = Instant::now();
                let decided = deciders.verify(frame, now);
                *slowest = began.elapsed().max(*slowest);
                for (who, (got, left)) in ["rust", "kernel"].into_iter().zip(decided) {
                    let hook = deciders.kernel.hook().name();
                    let place = format!("{} ({}), step {index}, {who}, {hook}", case.name, case.clause);
                    if got != *outcome {
                        failures.push(format!("{place}: {got:?}, not {outcome:?}\n  {:.200}", hex::encode(frame)));
                    } else if left != *out {
                        let (left, out) = (hex::encode(left), hex::encode(out));
                        failures.push(format!("{place}: the packet is\n  {left}, not\n  {out}"));
                    }
                }
            }
        }
    }
    let flows: std::collections::BTreeMap<_, _> = deciders.kernel.flows.entries().into_iter().collect();
    let accounts: std::collections::BTreeMap<_, _> = deciders.kernel.accounts.entries().into_iter().collect();
    if accounts != deciders.model.accounts {
        failures.push(format!("{}: accounts differ: {accounts:?}, modelled {:?}", case.name, deciders.model.accounts));
    }
    if flows != deciders.model.flows {
        failures.push(format!("{}: the flow tables differ", case.name));
    }
    failures
}

fn report(failures: &[String], rows: usize) {
    assert!(failures.is_empty(), "{} failures in {rows} rows:\n{}", failures.len(), failures.join("\n"));
    println!("{rows} rows agree");
}

#[test]
fn kernel_and_rust_agree_on_every_row() {
    let mut cases = table::tokens::cases();
    cases.extend(table::admission::cases());
    cases.extend(table::forms::cases());
    cases.extend(table::attacks::cases());
    cases.extend(table::streams::cases());
    cases.extend(table::fast_open::cases());
    cases.extend(table::optional::cases());
    cases.extend(table::accounts::cases());
    cases.extend(table::clocks::cases());
    cases.extend(table::sealed::cases());
    let mut failures = Vec::new();
    for hook in Hook::ALL {
        let mut deciders = Deciders::new(hook, world::config(), &world::receivers()).with_tunnel();
        check(&mut deciders, &cases, &mut failures);
    }
    assert!(cases.len() >= 150, "{} rows", cases.len());
    // Inside addresses are assigned after admission, on a gateway.
    for reason in wire::DropReason::ALL.iter().filter(|reason| **reason != wire::DropReason::NoAddress) {
        let shown = cases
            .iter()
            .flat_map(|case| &case.steps)
            .any(|step| matches!(step, Step::Frame { outcome: Outcome::Drop(r), .. } if r == reason));
        assert!(shown, "no row shows {reason}");
    }
    report(&failures, cases.len());
}

#[test]
fn kernel_and_rust_agree_on_the_published_vectors() {
    let cases = table::tokens::vectors();
    let mut failures = Vec::new();
    for hook in Hook::ALL {
        check(&mut Deciders::new(hook, world::config(), &world::everything()), &cases, &mut failures);
    }
    report(&failures, cases.len());
}

#[test]
fn kernel_and_rust_agree_on_every_row_about_segments_in_datagrams() {
    let config = world::config();
    let config = VerifierConfig { carriers: config.carriers | Carrier::TcpInUdp as u16, ..config };
    let (mut failures, mut rows) = (Vec::new(), 0);
    for hook in Hook::ALL {
        let mut cases = table::datagrams::cases(hook);
        // Segments, and datagrams to other ports, have the same outcome as in the other tables.
        cases.extend(table::streams::cases());
        cases.extend(table::fast_open::cases());
        cases.extend(table::accounts::cases());
        check(&mut Deciders::new(hook, config, &world::receivers()), &cases, &mut failures);
        rows += cases.len();
    }
    report(&failures, rows);
}

#[test]
fn kernel_drops_segments_in_datagrams_that_it_refuses_also_when_it_observes() {
    let config = world::config();
    let carriers = config.carriers | Carrier::TcpInUdp as u16;
    let config = VerifierConfig { carriers, observe: 1, ..config };
    let deciders = Deciders::new(Hook::Tc, config, &world::receivers());
    deciders.set_clock(NOW);
    for family in world::families() {
        let mut first = Transport::Tcp.first(&family, &Grant::new(&family, 60), table::CLIENT_PORT, 1);
        first.token[35] ^= 1;
        let syn = first.packet.clone().payload(&wire::tail::tcp_in_udp_block(&first.token)).frame();
        let mut datagram = syn.clone();
        wire::reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(&syn)).expect("a segment");
        let code = |frame: &[u8]| deciders.kernel.run(frame, 1).expect("the program runs").code;
        // As a segment, it would open a connection that the host would not have without the verifier.
        assert_eq!(code(&datagram), Hook::Tc.code(false), "{}", family.name);
        assert_eq!(code(&first.frame()), Hook::Tc.code(true), "{}", family.name);
    }
}

#[test]
fn kernel_and_rust_agree_on_every_row_about_shims() {
    // Where shims are accepted, all other cases have the same outcome; one hook's result stands for both.
    let mut others = table::tokens::cases();
    others.extend(table::admission::cases());
    others.extend(table::forms::cases());
    let (mut failures, mut rows) = (Vec::new(), others.len());
    for hook in Hook::ALL {
        let cases = table::shims::cases(hook);
        let mut deciders = Deciders::new(hook, world::config_with_shims(), &world::receivers());
        check(&mut deciders, &cases, &mut failures);
        rows += cases.len();
        if hook == Hook::Xdp {
            check(&mut deciders, &others, &mut failures);
        }
    }
    report(&failures, rows);
}

#[test]
fn kernel_and_rust_take_no_carrier_and_no_suite_that_is_off() {
    let [family, _] = world::families();
    let grant = Grant::new(&family, 50);
    let aes = Grant { suite: wire::Suite::AesCmac, ..grant };
    let pair = LsPair::new(1);
    let first = Transport::Tcp.first(&family, &grant, table::CLIENT_PORT, 1);
    let first_aes = Transport::Tcp.first(&family, &aes, table::CLIENT_PORT, 1);
    let shim = first.packet.shimmed(&Content::Token(first.token).encode()).frame();
    let ls = first.packet.shimmed(&Content::Ls(pair.token(1)).encode()).frame();
    let fortress = lab::forge::Packet::new(family.client, family.fortress).tcp(lab::forge::Tcp::syn(1, 22));
    let fortress = fortress.shimmed(&Content::Ls(pair.token(2)).encode()).frame();
    let default = world::config();
    let shims = VerifierConfig { carriers: Carrier::Tail as u16 | Carrier::Shim as u16, ..default };
    let only_shims = VerifierConfig { carriers: Carrier::Shim as u16, ..default };
    let only_siphash = VerifierConfig { suites: 1 << wire::Suite::Siphash as u16, ..default };
    let drop = Outcome::Drop;
    let (no_token, unknown_suite) = (drop(wire::DropReason::NoToken), drop(wire::DropReason::UnknownSuite));
    let (tail, tail_aes) = (first.frame(), first_aes.frame());
    for (config, frames) in [
        (default, vec![(&shim, Outcome::NotOurs), (&ls, Outcome::NotOurs), (&fortress, no_token)]),
        (shims, vec![(&shim, Outcome::Token), (&ls, unknown_suite)]),
        (only_shims, vec![(&tail, no_token), (&shim, Outcome::Token)]),
        (only_siphash, vec![(&tail_aes, unknown_suite), (&tail, Outcome::Token)]),
        (world::config_with_shims(), vec![(&ls, Outcome::Token)]),
    ] {
        for hook in Hook::ALL {
            let mut deciders = Deciders::new(hook, config, &world::receivers());
            deciders.tell(&pair);
            deciders.set_clock(NOW);
            for (frame, outcome) in &frames {
                for (got, _) in deciders.verify(frame, NOW) {
                    assert_eq!(got, *outcome, "{} {config:?}", hook.name());
                }
            }
        }
    }
}

#[test]
fn kernel_takes_the_published_tokens_of_ls() {
    let [family, _] = world::families();
    let text = include_str!("../../wire/tests/data/tokens.json");
    let all: serde_json::Value = serde_json::from_str(text).expect("tokens.json is JSON");
    let bytes = |case: &serde_json::Value, name: &str| hex::decode(case[name].as_str().expect(name)).expect("hex");
    let mut taken = 0;
    for case in all["ls"].as_array().expect("cases") {
        // A verifier's secrets have 32 bytes.
        let Ok(secret) = bytes(case, "secret").try_into() else { continue };
        let pair = Pair {
            unique_id: bytes(case, "unique_id").try_into().expect("5 bytes"),
            nonce1: bytes(case, "nonce1").try_into().expect("2 bytes"),
        };
        let mut deciders = Deciders::new(Hook::Xdp, world::config_with_shims(), &world::receivers());
        let epoch = wire::Epoch::at(NOW.into(), world::EPOCH_LENGTH);
        let entry = SecretEntry::new(epoch.0, &ServerSecret::new(secret));
        deciders.kernel.ls_secrets.set(&u32::from(epoch.on_wire()), &entry).expect("map takes secrets");
        deciders.tell(&LsPair { pair, epoch, expires: NOW + 300, holder: Holder(0) });
        deciders.set_clock(NOW);
        let packet = Transport::Tcp.first(&family, &Grant::new(&family, 1), table::CLIENT_PORT, 1).packet;
        let frame = packet.shimmed(&bytes(case, "option")).frame();
        let ran = deciders.kernel.run(&frame, 1).expect("the program runs");
        assert_eq!(deciders.kernel.count(counter::TOKEN).expect("counters"), 1, "{case}");
        assert_eq!(ran.frame, packet.frame());
        taken += 1;
    }
    assert!(taken >= 2);
}

#[test]
fn kernel_that_observes_drops_nothing_but_tokens_in_streams_and_counts_the_same() {
    let mut cases = table::tokens::cases();
    cases.extend(table::admission::cases());
    cases.extend(table::forms::cases());
    cases.extend(table::attacks::cases());
    cases.extend(table::streams::cases());
    cases.extend(table::fast_open::cases());
    cases.extend(table::optional::cases());
    cases.extend(table::accounts::cases());
    let observing = wire::map::VerifierConfig { observe: 1, ..world::config() };
    let mut failures = Vec::new();
    for hook in Hook::ALL {
        // A packet that a row drops passes here; `judge` checks the return code against the outcome, observing.
        check(&mut Deciders::new(hook, observing, &world::receivers()).with_tunnel(), &cases, &mut failures);
    }
    let inside = table::sealed::cases();
    let mut deciders = Deciders::new(Hook::Tc, observing, &world::receivers()).with_tunnel();
    check(&mut deciders, &inside, &mut failures);
    report(&failures, cases.len() + inside.len());
}

#[test]
fn kernel_and_rust_agree_on_the_published_vectors_of_sealed_grants() {
    let text = include_str!("../../wire/tests/data/sealed.json");
    let all: serde_json::Value = serde_json::from_str(text).expect("sealed.json is JSON");
    let rows = all["tokens"].as_array().expect("rows");
    let mut deciders = Deciders::new(Hook::Tc, world::config(), &world::everything()).with_tunnel();
    for row in rows {
        let number = |name: &str| row[name].as_u64().expect("a number");
        let to = wire::Destination {
            address: world::address(row["destination"].as_str().expect("an address")),
            protocol: number("protocol") as u8,
            port: number("port") as u16,
        };
        let [four, six] = world::families();
        let family = if to.address.is_ipv4() { four } else { six };
        let transport = if to.protocol == wire::packet::TCP { Transport::Tcp } else { Transport::Udp };
        let token = hex::decode(row["token"].as_str().expect("a token")).expect("hex");
        let first = table::First {
            packet: transport.opening(&family, table::CLIENT_PORT, &to),
            payload: b"x".to_vec(),
            token: token.try_into().expect("36 bytes"),
        };
        deciders.forget();
        deciders.set_clock(NOW);
        let outcomes = match row["inside"].as_bool() {
            Some(true) => deciders.verify_inside(&first.frame().split_off(14), NOW),
            _ => deciders.verify(&first.frame(), NOW),
        };
        for (outcome, _) in outcomes {
            let expected = row["reason"].as_str().unwrap_or("token");
            assert_eq!(outcome.name(), expected, "{}", row["name"]);
        }
    }
    assert!(rows.len() >= 20);
}

#[test]
fn kernel_forgets_no_revocation_when_thousands_of_others_end() {
    let sizes = Sizes { revoked: 16384, ..world::SIZES };
    let [family, _] = world::families();
    for hook in Hook::ALL {
        let mut deciders = Deciders::with_sizes(hook, world::config(), &world::receivers(), sizes);
        deciders.revoke(7, NOW + 3600);
        for handle in 1000..9000 {
            deciders.revoke(handle, NOW - 100);
        }
        deciders.sweep(NOW);
        assert_eq!(deciders.kernel.revoked.handles(), [7]);
        deciders.set_clock(NOW);
        let grant = Grant::new(&family, 7);
        let first = Transport::Tcp.first(&family, &grant, table::CLIENT_PORT, 1).frame();
        for (outcome, _) in deciders.verify(&first, NOW) {
            assert_eq!(outcome, Outcome::Drop(wire::DropReason::Revoked));
        }
    }
}

/// Sends a row's datagram so many times, and returns how many carried a token. Both deciders agree on each.
fn tokens(agents: &mut Agents, row: &table::agent::Row, seconds: u32, datagrams: usize) -> usize {
    let mut tokens = 0;
    for number in 0..datagrams {
        let [modelled, emitted] = agents.insert(&row.frame, NOW + seconds);
        assert!(modelled == emitted, "{}: datagram {number} at {seconds} s: {modelled:?}, {emitted:?}", row.name);
        tokens += usize::from(modelled.0 == Action::Token);
    }
    assert!(agents.agree(), "{} at {seconds} s", row.name);
    tokens
}

#[test]
fn kernel_and_rust_insert_the_same_along_a_flow_of_datagrams() {
    let mut agents = Agents::new();
    for row in table::agent::rows().iter().filter(|row| row.name.contains("udp, siphash")) {
        agents.know(row);
        assert_eq!(tokens(&mut agents, row, 0, 1000), 4 + 7, "the first four, the 8th, … the 512th");
        assert_eq!(tokens(&mut agents, row, 1, 1000), 2, "the second's first, and the 1024th");
        assert_eq!(tokens(&mut agents, row, 2, 1000), 2, "the second's first, and the 2048th");
        agents.answer();
        assert_eq!(tokens(&mut agents, row, 2, 10), 0, "an answered flow");
        assert_eq!(tokens(&mut agents, row, 16, 10), 0, "14 s after the last token");
        assert_eq!(tokens(&mut agents, row, 17, 10), 1, "15 s after the last token");
        assert_eq!(tokens(&mut agents, row, 32, 10), 5, "a flow that was silent for 15 s begins anew");
    }
}

#[test]
fn kernel_and_rust_insert_the_same_and_the_verifier_restores_it() {
    let mut agents = Agents::new();
    let mut deciders = Deciders::new(Hook::Xdp, world::config_with_shims(), &world::receivers());
    let mut failures = Vec::new();
    let rows = table::agent::rows();
    for row in &rows {
        agents.know(row);
        let place = format!("{} ({})", row.name, row.clause);
        let [(action, modelled), (counted, emitted)] = agents.insert(&row.frame, NOW);
        if !(row.action)(&action) || !(row.action)(&counted) {
            failures.push(format!("{place}: rust {action:?}, kernel {counted:?}"));
        } else if modelled != emitted {
            failures.push(format!(
                "{place}: rust emits\n {}, the kernel\n {}",
                hex::encode(modelled),
                hex::encode(emitted)
            ));
        } else if action == Action::Token {
            deciders.forget();
            if let Known::Pair(pair, _) = row.known {
                deciders.tell(&pair);
            }
            deciders.set_clock(NOW);
            let end = wire::packet::Packet::parse(&row.frame).end;
            for (outcome, restored) in deciders.verify(&emitted, NOW) {
                if outcome != Outcome::Token || restored != row.frame[..end] {
                    failures.push(format!("{place}: {outcome:?} restores\n {}", hex::encode(restored)));
                }
            }
        } else if emitted != row.frame && action != Action::Failed {
            failures.push(format!("{place}: {action:?} changed the packet"));
        }
    }
    report(&failures, rows.len());
}

/// First fragments from unauthenticated senders have a table of their own, which they may fill.
#[test]
fn kernel_keeps_the_fragments_of_admitted_flows_whatever_strangers_send() {
    let [family, _] = world::families();
    let deciders = Deciders::new(Hook::Xdp, world::config(), &world::receivers());
    deciders.set_clock(NOW);
    let outcome = |frame: &[u8]| deciders.kernel.run(frame, 1).expect("the program runs").code;
    let [passes, drops] = [true, false].map(|passes| Hook::Xdp.code(passes));
    let first = Transport::Udp.first(&family, &Grant::new(&family, 60), table::CLIENT_PORT, 1);
    assert_eq!(outcome(&first.frame()), passes);
    let datagram = |from, port, id| {
        let packet = lab::forge::Packet::new(from, family.server).udp(table::CLIENT_PORT, port).identification(id);
        packet.payload(&[5; 100]).fragments(64)
    };
    let admitted = datagram(family.client, 443, 1);
    let open = datagram(family.client, 5353, 2);
    assert_eq!([&admitted[0], &open[0]].map(|part| outcome(part)), [passes; 2]);
    for id in 0..20_000 {
        // The kernel's clock goes on meanwhile. On a slow machine the flood would take longer than a first fragment is
        // remembered.
        if id % 64 == 0 {
            deciders.set_clock(NOW);
        }
        assert_eq!(outcome(&datagram(family.stranger, 5353, id)[0]), passes);
    }
    deciders.set_clock(NOW);
    assert_eq!([&admitted[1], &open[1]].map(|part| outcome(part)), [passes, drops]);
}
