//! The verdict as a mark: admitted packets have it, with their grant's class; nothing is dropped, and a mark set by
//! others under the mask is cleared.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::hook::Hook;
use lab::forge::{Packet, Tcp, flag};
use wire::map::{GrantClass, VerifierConfig};
use wire::packet::TCP;
use wire::{Destination, tail};
use world::{Deciders, Grant, NOW, families};

const MARK: u32 = 0x5600_0000;
const MASK: u32 = 0xffff_0000;
const CLASS: u32 = 7;
/// Bits outside the verifier's mask, and bits inside it that another program has set.
const OTHERS: u32 = 0x8001;
const FORGED: u32 = MARK | 0x00ff_0000;
const PASS: u32 = u32::MAX;

#[test]
fn kernel_marks_what_is_admitted_with_its_class() {
    let config = VerifierConfig { mark: MARK, mark_mask: MASK, ..world::config() };
    for family in families() {
        let deciders = Deciders::new(Hook::Tc, config, &world::receivers());
        deciders.set_clock(NOW);
        let (handle, to) = (11, Destination { address: family.server, protocol: TCP, port: 22 });
        let token = Grant::new(&family, handle).token(&to, NOW, 1);
        let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let packet = |address| Packet::new(family.client, address).ethernet(macs[0], macs[1]);
        let plain = packet(family.server).tcp(Tcp::syn(40_000, 22)).frame();
        let first = packet(family.server).tcp(Tcp::syn(40_000, 22)).payload(&tail::block(&token)).frame();
        let next = packet(family.server).tcp(Tcp::new(40_000, 22, flag::ACK)).payload(b"data").frame();
        let open = packet(family.open).tcp(Tcp::syn(40_000, 22)).frame();
        let run = |frame: &[u8]| {
            let (ran, mark) = deciders.kernel.run_marked(frame, OTHERS | FORGED).unwrap();
            assert_eq!(ran.code, PASS, "nothing is dropped");
            (ran.frame, mark)
        };
        // Without a token, without a flow, and to an unprotected service: no mark of the verifier's.
        for frame in [&plain, &next, &open] {
            assert_eq!(run(frame), (frame.clone(), OTHERS));
        }
        // The first packet arrives without its token, and has no class until user space sets it.
        assert_eq!(run(&first), (plain.clone(), OTHERS | MARK));
        let classes = deciders.kernel.classes.as_ref().expect("it marks");
        classes.set(&handle, &GrantClass { class: CLASS, expires: NOW + 300 }).unwrap();
        assert_eq!(run(&next), (next.clone(), OTHERS | MARK | CLASS << 16));
        // The token is used up, so the packet is unmarked.
        assert_eq!(run(&first), (first.clone(), OTHERS));
        let flow = deciders.kernel.flows.keys();
        deciders.kernel.flows.remove(&flow[0]).unwrap();
        assert_eq!(run(&next), (next, OTHERS));
    }
}

#[test]
fn kernel_programs_at_xdp_mark_nothing() {
    let config = VerifierConfig { mark: MARK, mark_mask: MASK, ..world::config() };
    let refused = datapath::verifier::Verifier::load(Hook::Xdp, config, world::SIZES, None);
    assert!(refused.err().is_some_and(|error| error.to_string().contains("only with `hook = \"tc\"`")));
}
