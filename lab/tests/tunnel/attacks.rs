//! Tests of attacks on the underlay with a segment that was issued to another sender.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use datapath::clock;
use datapath::proofs::Proofs;
use lab::forge::Packet;
use lab::mint::now;
use lab::segments::{EPOCH_LENGTH, Giver, MAX_LIFETIME, Minted};
use lab::{Port, poll, test};
use wire::geneve::{self, ENCAPSULATION_MAX, Payload};
use wire::map::{ProofsConfig, counter, svtep_counter as tunnel};
use wire::packet::UDP;
use wire::{DropReason, Ends, InterfaceId, Segment, SegmentFlags, Vni};

use crate::SOON;
use crate::stage::{Core, Endpoint};

const PORT: u16 = 443;
/// Offset of the option's data behind the start of a Geneve header.
const SEGMENT_AT: usize = geneve::HEADER_LEN + geneve::OPTION_HEADER_LEN;

/// A tunnelled datagram, whose parts an attack changes.
struct Capsule {
    from: IpAddr,
    to: IpAddr,
    geneve: Vec<u8>,
    inner: Packet,
}

impl Capsule {
    fn new(given: &Minted) -> Result<Self> {
        let Ends { sending, receiving, sender, receiver } = given.ends;
        let mut room = [0; ENCAPSULATION_MAX];
        let length = given.encapsulation(Payload::Ipv4).encode(&mut room).context("it fits")?;
        let inner = Packet::new(sender, receiver).udp(40_000, PORT).payload(b"attack");
        Ok(Self { from: sending, to: receiving, geneve: room[..length].to_vec(), inner })
    }

    fn frame(&self, from: &Endpoint, to: [u8; 6]) -> Result<Vec<u8>> {
        let payload = [&self.geneve[..], &self.inner.ip()].concat();
        let outer = Packet::new(self.from, self.to).udp(50_000, geneve::PORT).payload(&payload);
        Ok(outer.ethernet(from.host.mac("underlay")?, to).frame())
    }
}

#[test]
fn what_is_stolen_forged_or_moved_does_not_pass() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b, mut c) = (core.endpoint(1)?, core.endpoint(2)?, core.endpoint(3)?);
        let (from, to) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let (_neighbour, _other) = (b.tenant(200, 2, "10.0.0.2")?, c.tenant(100, 1, "10.0.0.2")?);
        let given = core.give((&a, &from), (&b, &to), Some((UDP, PORT)), SegmentFlags::REPLY)?;
        let (segment, ends) = core.segment((&a, &from), (&b, &to), Some((UDP, PORT)));
        let whole = |segment: Segment, vni: Vni, path: &[&str]| core.giver.prove(segment, vni, ends, path);
        let of = |changed: &dyn Fn(&mut Capsule)| -> Result<Capsule> {
            let mut capsule = Capsule::new(&given)?;
            changed(&mut capsule);
            Ok(capsule)
        };
        let packet = |from: &str, to: &str, port| {
            let address = |text: &str| text.parse::<IpAddr>().expect("an address");
            Packet::new(address(from), address(to)).udp(40_000, port)
        };
        let expired = Segment { expires: now() - 1, ..segment };
        let endless = Segment { expires: now() + 10 * MAX_LIFETIME, ..segment };
        let mut stranger = Giver::new([1; 32]);
        stranger.authority = IpAddr::from([203, 0, 113, 9]);
        let foreign = Segment { authority: stranger.authority, ..segment };
        let b_id = b.id.as_str();
        use DropReason::{BadTag, Expired, LifetimeTooLong, Malformed, NoToken, UnknownEpoch, UnknownSuite};
        let attempts = [
            ("another sender", BadTag, of(&|it| it.inner = packet("10.0.0.3", "10.0.0.2", PORT))?),
            ("another receiver", BadTag, of(&|it| it.inner = packet("10.0.0.1", "10.0.0.3", PORT))?),
            ("another application", BadTag, of(&|it| it.inner = packet("10.0.0.1", "10.0.0.2", 22))?),
            ("another network", BadTag, of(&|it| it.geneve[6] = 200)?),
            ("another sending endpoint", BadTag, of(&|it| it.from = c.address)?),
            ("another tenant's interface", BadTag, of(&|it| it.geneve[SEGMENT_AT + 9] = 2)?),
            ("a later end", BadTag, of(&|it| it.geneve[SEGMENT_AT + 7] ^= 1)?),
            ("a proof with a bit changed", BadTag, of(&|it| *it.geneve.last_mut().expect("a proof") ^= 1)?),
            ("an answer under a segment for questions", BadTag, of(&|it| it.geneve[SEGMENT_AT + 1] ^= 6)?),
            ("replayed after its end", Expired, Capsule::new(&whole(expired, to.vni, &[b_id])?)?),
            ("one that never ends", LifetimeTooLong, Capsule::new(&whole(endless, to.vni, &[b_id])?)?),
            ("another verifier's proof", BadTag, Capsule::new(&whole(segment, to.vni, &[&c.id])?)?),
            ("a stranger's authority", UnknownEpoch, Capsule::new(&stranger.prove(foreign, to.vni, ends, &[b_id])?)?),
            ("the pointer behind the last proof", Malformed, of(&|it| it.geneve[SEGMENT_AT] |= 1)?),
            ("no proofs", Malformed, of(&|it| it.geneve[SEGMENT_AT] &= !0x38)?),
            ("more proofs than there are", Malformed, of(&|it| it.geneve[SEGMENT_AT] |= 0x18)?),
            ("a suite that nobody has", UnknownSuite, of(&|it| it.geneve[SEGMENT_AT] &= 0x3f)?),
            ("an option cut short", Malformed, of(&|it| it.geneve.truncate(SEGMENT_AT + 20))?),
            ("an option that says it is shorter", Malformed, of(&|it| it.geneve[11] -= 4)?),
            (
                "no option",
                NoToken,
                of(&|it| {
                    it.geneve.truncate(geneve::HEADER_LEN);
                    it.geneve[0] = 0;
                })?,
            ),
        ];
        let port = Port::open(&a.host, "underlay")?;
        let send = |capsule: &Capsule| port.send(&capsule.frame(&a, a.next)?);
        for (name, reason, capsule) in attempts {
            let count = || b.program.proofs.counts().map(|counts| counts[reason as usize]);
            let before = count()?;
            send(&capsule)?;
            ensure!(poll(SOON, || count().is_ok_and(|count| count > before)), "{name}: not {}", reason.name());
        }
        // Send the same proof to another receiving endpoint.
        let count = || c.program.proofs.counts().map(|counts| counts[BadTag as usize]);
        send(&of(&|it| it.to = c.address)?)?;
        ensure!(poll(SOON, || count().is_ok_and(|count| count == 1)), "another receiving endpoint");
        ensure!(b.program.count(tunnel::DELIVERED)? + c.program.count(tunnel::DELIVERED)? == 0, "nothing passed");
        ensure!(b.program.consents.keys().is_empty(), "nor was anything learnt from it");
        send(&of(&|_| ())?)?;
        ensure!(
            poll(SOON, || b.program.count(tunnel::DELIVERED).is_ok_and(|count| count == 1)),
            "the right one passes"
        );
        Ok(())
    });
}

/// The verifiers on a path, and the endpoint at its end.
struct Way<'a> {
    verifiers: Vec<Proofs>,
    endpoint: &'a Endpoint,
}

impl Way<'_> {
    /// Returns the index of the verifier that stops a frame; `None` if the frame arrives. The verifier with the index
    /// `compromised` passes every frame on as if it had checked it.
    fn stops(&self, mut frame: Vec<u8>, compromised: Option<usize>) -> Result<Option<usize>> {
        const PLACE_AT: usize = 14 + 20 + 8 + SEGMENT_AT;
        for (index, verifier) in self.verifiers.iter().enumerate() {
            if compromised == Some(index) {
                frame[PLACE_AT] += 1;
                continue;
            }
            // Count proofs that were computed or remembered.
            let passed = || verifier.counts().map(|of| of[counter::TOKEN as usize] + of[counter::FLOW as usize]);
            let before = passed()?;
            let ran = verifier.run(&frame, 1)?;
            if passed()? == before {
                return Ok(Some(index));
            }
            frame = ran.frame;
        }
        let delivered = self.endpoint.program.count(tunnel::DELIVERED)?;
        self.endpoint.program.run_in(&frame)?;
        let arrived = self.endpoint.program.count(tunnel::DELIVERED)? > delivered;
        Ok((!arrived).then_some(self.verifiers.len()))
    }
}

#[test]
fn of_three_verifiers_in_a_row_two_stop_what_a_compromised_one_lets_through() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
        let (from, to) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let verifier = |id| -> Result<Proofs> {
            let verifier = Proofs::load(ProofsConfig { epoch_length: EPOCH_LENGTH, max_lifetime: MAX_LIFETIME }, 16)?;
            let (epoch, key) = core.giver.key(id, now())?;
            verifier.learn(core.giver.authority, epoch, &key)?;
            verifier.stand_before(&[(b.address, 32)])?;
            verifier.set_clock(clock::coarse_to_unix())?;
            Ok(verifier)
        };
        let way = Way { verifiers: vec![verifier("first")?, verifier("second")?], endpoint: &b };
        let (segment, ends) = core.segment((&a, &from), (&b, &to), Some((UDP, PORT)));
        let path = ["first", "second", &b.id];
        let given = core.giver.prove(segment, to.vni, ends, &path)?;
        // Forge a segment with the one additional secret that a compromised verifier has: its own key.
        let forged = |compromised: usize| -> Result<Minted> {
            let stolen = Segment { interface: InterfaceId(1), expires: segment.expires + 9, ..segment };
            let own = core.giver.prove(stolen, to.vni, ends, &path)?;
            let mut forged = own.clone();
            for (index, proof) in forged.proofs.iter_mut().enumerate() {
                if index != compromised {
                    *proof = given.proofs[index];
                }
            }
            Ok(forged)
        };
        let frame = |given: &Minted| Capsule::new(given)?.frame(&a, a.next);
        ensure!(way.stops(frame(&given)?, None)?.is_none(), "what is right arrives");
        let next = |compromised: usize| if compromised == 0 { 1 } else { 0 };
        for compromised in 0..3 {
            let whom = Some(compromised).filter(|index| *index < 2);
            let stopped = way.stops(frame(&forged(compromised)?)?, whom)?;
            ensure!(stopped == Some(next(compromised)), "{compromised} compromised: stopped by {stopped:?}");
            ensure!(way.stops(frame(&given)?, whom)?.is_none(), "{compromised} compromised: what is right arrives");
        }
        // A compromised verifier tries to skip the next one: it advances the pointer by two.
        let mut skipping = Capsule::new(&given)?;
        skipping.geneve[SEGMENT_AT] += 1;
        ensure!(way.stops(skipping.frame(&a, a.next)?, Some(0))? == Some(1), "a pointer that spares a verifier");
        Ok(())
    });
}
