//! One table of cases through the Rust decision and through the kernel program.

mod agents;
mod table;
mod world;

use agents::Agents;
use datapath::hook::Hook;
use datapath::verifier::Sizes;
use engine::insertion::Action;
use engine::verifier::Outcome;
use table::{Case, Step, Transport};
use world::{Deciders, Grant, NOW};

fn check(deciders: &mut Deciders, cases: &[Case], failures: &mut Vec<String>) {
    for case in cases {
        deciders.forget();
        let mut now = NOW;
        for (index, step) in case.steps.iter().enumerate() {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Revoke(handle) => deciders.revoke(*handle, now + 3600),
                Step::Sweep => deciders.sweep(now),
                Step::Frame { frame, .. } if !world::runs(deciders.kernel.hook(), frame) => {}
                Step::Frame { frame, outcome, out } => {
                    deciders.set_clock(now);
                    for (who, (got, left)) in ["rust", "kernel"].into_iter().zip(deciders.judge(frame, now)) {
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
        if flows != deciders.model.flows {
            failures.push(format!("{}: the flow tables differ", case.name));
        }
    }
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
    let mut failures = Vec::new();
    for hook in Hook::ALL {
        check(&mut Deciders::new(hook, world::config(), &world::receivers()), &cases, &mut failures);
    }
    assert!(cases.len() >= 150, "{} rows", cases.len());
    for reason in wire::DropReason::ALL {
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
fn kernel_that_observes_drops_nothing_and_counts_the_same() {
    let mut cases = table::tokens::cases();
    cases.extend(table::admission::cases());
    cases.extend(table::forms::cases());
    let observing = wire::map::VerifierConfig { observe: 1, ..world::config() };
    let mut failures = Vec::new();
    for hook in Hook::ALL {
        // What a row drops passes here; `judge` checks the return code against the outcome, observing.
        check(&mut Deciders::new(hook, observing, &world::receivers()), &cases, &mut failures);
    }
    report(&failures, cases.len());
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
        for (outcome, _) in deciders.judge(&first, NOW) {
            assert_eq!(outcome, Outcome::Drop(wire::DropReason::Revoked));
        }
    }
}

#[test]
fn kernel_and_rust_insert_the_same_and_the_verifier_restores_it() {
    let mut agents = Agents::new();
    let mut deciders = Deciders::new(Hook::Xdp, world::config(), &world::receivers());
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
            deciders.set_clock(NOW);
            let end = wire::packet::Packet::parse(&row.frame).end;
            for (outcome, restored) in deciders.judge(&emitted, NOW) {
                if outcome != Outcome::Token || restored != row.frame[..end] {
                    failures.push(format!("{place}: {outcome:?} restores\n {}", hex::encode(restored)));
                }
            }
        } else if emitted != row.frame {
            failures.push(format!("{place}: {action:?} changed the packet"));
        }
    }
    report(&failures, rows.len());
}
