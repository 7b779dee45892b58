//! Builds packets that a verifier must drop, for each drop reason that an outsider's packet can cause.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use lab::forge::{Tcp, flag};
use lab::mint::{Forgery, MAX_LIFETIME, Mint, epoch, now};
use lab::service::ask;
use lab::world::{ECHO, OPEN4, OPEN6, SOON, SSH, VERIFIER, in_family};
use lab::{Outsider, World, poll};
use wire::packet::{TCP, UDP};
use wire::{Destination, DropReason, Flags, Suite};

/// Returns the drop reasons in order, without [`DropReason::NoAddress`], which concerns clients with a grant only.
pub fn reasons() -> impl Iterator<Item = DropReason> {
    DropReason::ALL.iter().copied().filter(|reason| *reason != DropReason::NoAddress)
}

/// Builds packets that the verifier must drop.
pub struct Attempts {
    mint: Mint,
    to: IpAddr,
    revoked: Option<u64>,
    used: Option<Vec<u8>>,
}

/// Handles that the authority has not issued.
const SINGLE: u64 = 0x5151_5151;
const UNUSED: u64 = 0x7272_7272;

impl Attempts {
    /// Prepares to build packets to the echo service at `to`.
    pub fn new(world: &World, to: IpAddr) -> Result<Self> {
        let mint = Mint::new(world.authority.master_key()?, VERIFIER);
        Ok(Self { mint, to, revoked: None, used: None })
    }

    /// Creates the state that attempts of this reason require: a revoked grant, a used token, or an admitted flow. A
    /// datagram that contains only a token admits a flow and gets no answer.
    pub fn prepare(&mut self, world: &World, outsider: &Outsider, reason: DropReason) -> Result<()> {
        match reason {
            DropReason::Revoked => {
                // A gateway with inside addresses may drop the first datagram, because it does not know the sender's
                // account yet.
                let asked = poll(SOON, || ask(&world.network.alice, (self.to, ECHO).into(), SOON / 10).is_ok());
                ensure!(asked, "no answer");
                let flows = world.verifier.flows()?;
                let of_alice = flows.iter().find_map(|flow| flow["handle"].as_str());
                let handle = of_alice.context("no flow of Alice's")?;
                world.authority.revoke_grant(handle)?;
                self.revoked = Some(u64::from_str_radix(handle, 16)?);
                let before = world.verifier.counters()?;
                let cut = poll(SOON, || {
                    let sent = self.frame(outsider, reason, 1).and_then(|frame| outsider.send(&frame));
                    let counters = world.verifier.counters();
                    sent.is_ok() && counters.is_ok_and(|now| now.dropped(reason) > before.dropped(reason))
                });
                ensure!(cut, "the revocation of {handle} did not arrive");
            }
            DropReason::Replayed => {
                let block = self.mint.block(&self.right(UDP, ECHO, outsider.source, UNUSED))?;
                outsider.send(&outsider.datagram(900, self.to, ECHO).payload(&block).frame())?;
                self.used = Some(block.to_vec());
            }
            DropReason::FlowLimit => {
                let mut single = self.right(UDP, ECHO, outsider.source, SINGLE);
                single.header.flags = single.header.flags.with(Flags::SINGLE);
                let block = self.mint.block(&single)?;
                outsider.send(&outsider.datagram(901, self.to, ECHO).payload(&block).frame())?;
            }
            _ => return Ok(()),
        }
        // Wait until the counters are stable before the attempts begin.
        let mut last = world.verifier.counters()?;
        let settled = poll(SOON, || {
            let next = world.verifier.counters().unwrap_or_default();
            std::mem::replace(&mut last, next.clone()) == next
        });
        ensure!(settled, "the counters don't come to rest");
        Ok(())
    }

    /// Builds attempt `number`. Consecutive numbers alternate between protocols and between ways to be wrong.
    pub fn frame(&mut self, outsider: &Outsider, reason: DropReason, number: u16) -> Result<Vec<u8>> {
        let port = 1024 + reason as u16 * 1500 + number;
        let protocol = if number.is_multiple_of(2) { TCP } else { UDP };
        let mut forgery = self.right(protocol, ECHO, outsider.source, UNUSED + u64::from(number));
        let header = &mut forgery.header;
        match reason {
            DropReason::NoToken => return Ok(self.carry(outsider, protocol, port, &[])),
            DropReason::Malformed | DropReason::UnknownSuite => {}
            // One epoch further than needed, so that the token stays unknown if the next epoch begins now.
            DropReason::UnknownEpoch => header.epoch = epoch(if number.is_multiple_of(3) { 3 } else { -2 }),
            // At least two seconds, because the verifier's clock may be a tick behind this one.
            DropReason::Expired => header.expires = now() - 2 - u32::from(number) % 100,
            DropReason::LifetimeTooLong => header.expires = now() + MAX_LIFETIME + 60 + u32::from(number),
            DropReason::ClockSkew => {
                let skew = 60 + u32::from(number) % 100;
                forgery.time = if number.is_multiple_of(3) { now() - skew } else { now() + skew };
            }
            DropReason::BadTag => self.spoil(&mut forgery, number),
            DropReason::Unsealed => header.flags = header.flags.with(Flags::SEALED),
            DropReason::Revoked => {
                header.handle.0 = self.revoked.context("nothing is revoked")?;
            }
            DropReason::Replayed => {
                let used = self.used.clone().context("nothing was used")?;
                return Ok(outsider.datagram(port, self.to, ECHO).payload(&used).frame());
            }
            DropReason::FlowLimit => {
                forgery = self.right(UDP, ECHO, outsider.source, SINGLE);
                forgery.header.flags = forgery.header.flags.with(Flags::SINGLE);
                forgery.header.expires = now() + 299;
                let block = self.mint.block(&forgery)?;
                return Ok(self.carry(outsider, UDP, port, &block));
            }
            DropReason::Fragment => {
                let whole = outsider.datagram(port, self.to, ECHO).identification(u32::from(number) + 1);
                let mut cut = whole.payload(&[b'x'; 64]).fragments(40);
                return cut.drain(..).nth(usize::from(number % 2)).context("two fragments");
            }
            DropReason::NoAddress => anyhow::bail!("not a stranger's to provoke"),
            DropReason::NoFlow => {
                let flags = [flag::ACK, flag::FIN | flag::ACK, flag::RST, flag::PSH | flag::ACK, flag::SYN | flag::ACK];
                let header = Tcp::new(port, ECHO, flags[usize::from(number) % flags.len()]);
                return Ok(outsider.packet(self.to).tcp(header).frame());
            }
        }
        let mut block = self.mint.block(&forgery)?;
        // The four bytes after the block's magic: version and suite, flags, epoch, prefix length.
        match (reason, number % 4) {
            (DropReason::Malformed, 0) => block[4] = 2 << 4 | 3,
            (DropReason::Malformed, 1) => block[5] |= 0x80,
            (DropReason::Malformed, 2) => block[5] |= Flags::BEARER.0,
            (DropReason::Malformed, _) => block[5] ^= Flags::IPV6.0,
            (DropReason::UnknownSuite, kind) => block[4] = 1 << 4 | [1, 0, 9, 15][usize::from(kind)],
            (DropReason::BadTag, 0) => block[39] ^= 1,
            _ => {}
        }
        Ok(self.carry(outsider, protocol, port, &block))
    }

    /// Returns a forgery that is right, so that its token would be admitted.
    fn right(&self, protocol: u8, port: u16, source: IpAddr, handle: u64) -> Forgery {
        self.mint.grant(handle, Destination { address: self.to, protocol, port }, source)
    }

    /// Changes a right forgery so that its token has the right form but proves something else.
    fn spoil(&self, forgery: &mut Forgery, number: u16) {
        match number / 2 % 6 {
            0 => forgery.to.port = SSH,
            1 => forgery.to.address = in_family(self.to.is_ipv6(), OPEN4, OPEN6),
            2 => forgery.to.protocol = if forgery.to.protocol == TCP { UDP } else { TCP },
            3 => {
                forgery.header.flags = forgery.header.flags.with(Flags::SOURCE);
                forgery.source = in_family(self.to.is_ipv6(), "203.0.113.99", "2001:db8:9::9");
            }
            4 => forgery.header.epoch = epoch(1),
            _ => forgery.header.suite = Suite::AesCmac,
        }
        // Suite and epoch alone would still be valid, so the token is also made for another port.
        if number / 2 % 6 > 3 {
            forgery.to.port = ECHO + 1;
        }
    }

    fn carry(&self, outsider: &Outsider, protocol: u8, port: u16, block: &[u8]) -> Vec<u8> {
        let packet = match protocol {
            TCP => outsider.syn(port, self.to, ECHO).payload(block),
            _ => outsider.datagram(port, self.to, ECHO).payload(&[b"x", block].concat()),
        };
        packet.frame()
    }
}
