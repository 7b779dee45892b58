//! Reproduces the first table of the published scheme's paper for every suite and carrier: a thousand tries each
//! without a token, with a wrong one, and with a valid one.

use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use lab::counter::Stack;
use lab::forge::Tcp;
use lab::mint::Mint;
use lab::outsider::{Outsider, Place};
use lab::service::dial;
use lab::world::{VERIFIER, Way};
use lab::{World, poll, test};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getpeername, socket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;
use wire::packet::TCP;
use wire::shim::Content;
use wire::{Carrier, Destination, DropReason, Handle, Pair, Suite, ls, tail};

use crate::{MANY, QUIET, SOON, front};

/// Number of concurrent connection attempts, below the limit of open files of a process.
const TOGETHER: u64 = 250;

/// Tries a thousand connections without an agent, and returns how many are established.
fn without_token(world: &World) -> Result<usize> {
    let to = SockaddrStorage::from(front(false));
    world.network.mallory.enter(|| {
        let mut established = 0;
        for _ in 0..MANY / TOGETHER {
            let attempt = |_| -> Result<OwnedFd> {
                let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
                let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
                match connect(socket.as_raw_fd(), &to) {
                    Err(Errno::EINPROGRESS) => Ok(socket),
                    other => Err(anyhow::anyhow!("a connection was {other:?}")),
                }
            };
            let attempts = (0..TOGETHER).map(attempt).collect::<Result<Vec<_>>>()?;
            let deadline = Instant::now() + QUIET;
            while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                let mut waiting: Vec<_> =
                    attempts.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLOUT)).collect();
                if nix::poll::poll(&mut waiting, PollTimeout::try_from(left)?)? > 0 {
                    break;
                }
            }
            let connected = |socket: &&OwnedFd| getpeername::<SockaddrStorage>(socket.as_raw_fd()).is_ok();
            established += attempts.iter().filter(connected).count();
        }
        Ok(established)
    })
}

/// Builds a SYN with a wrong token. In turns, the token has the handle of an existing grant, or of none.
fn wrong(
    world: &World,
    outsider: &Outsider,
    mint: &mut Mint,
    suite: &str,
    carrier: Carrier,
    number: u16,
) -> Result<Vec<u8>> {
    let to = front(false);
    let syn = outsider.syn(1024 + number, to.ip(), to.port());
    let live = || -> Result<u64> {
        let grants = world.authority.grants()?;
        let handle = grants.iter().find_map(|grant| grant["handle"].as_str()).context("no grant")?;
        Ok(u64::from_str_radix(handle, 16)?)
    };
    let of_a_grant = number.is_multiple_of(100);
    if suite == ls::NAME {
        let pair =
            if of_a_grant { Pair::of(Handle(live()?)).context("no pair")? } else { Pair::from_random(number.into()) };
        let mut token = [number as u8; ls::TOKEN_LEN];
        token[..ls::PAIR_LEN].copy_from_slice(&pair.bytes());
        return Ok(syn.shimmed(&Content::Ls(token).encode()).frame());
    }
    let handle = if of_a_grant { live()? } else { 7 << 56 | u64::from(number) };
    let mut grant =
        mint.grant(handle, Destination { address: to.ip(), protocol: TCP, port: to.port() }, outsider.source);
    grant.header.suite = if suite == Suite::AesCmac.name() { Suite::AesCmac } else { Suite::Siphash };
    let mut block = mint.block(&grant)?;
    block[28 + usize::from(number % 12)] ^= 1 << (number % 8);
    Ok(match carrier {
        Carrier::Tail => syn.payload(&block).frame(),
        Carrier::Stream => {
            block[..tail::STREAM_MAGIC.len()].copy_from_slice(&tail::STREAM_MAGIC);
            syn.payload(&block).frame()
        }
        Carrier::FastOpen => {
            let token = *block.last_chunk().context("a block has a token")?;
            let options = tail::fast_open_option(&token).to_vec();
            let header = Tcp { options, ..Tcp::syn(1024 + number, to.port()) };
            syn.tcp(header).payload(&tail::fast_open_block(&token)).frame()
        }
        Carrier::TcpInUdp => {
            let token = block.last_chunk().context("a block has a token")?;
            let segment = syn.payload(&tail::tcp_in_udp_block(token)).frame();
            let mut datagram = segment.clone();
            wire::reorder::to_udp(&mut datagram, &wire::packet::Packet::parse(&segment)).context("a segment")?;
            datagram
        }
        Carrier::Shim => {
            syn.shimmed(&Content::Token(*block.last_chunk().context("a block has a token")?).encode()).frame()
        }
    })
}

fn none_none_all(suite: &str, carrier: Carrier) -> Result<()> {
    let world = World::with_tokens(Way::Direct, suite, carrier)?;
    let (alice, to) = (&world.network.alice, front(false));
    alice.enter(|| dial(to, SOON)).context("the first, which fetches the grant")?;
    let served = world.services.echo.connections();

    let established = without_token(&world)?;
    ensure!(established == 0, "{established} of {MANY} connections without a token");

    let outsider = Outsider::new(&world.network, Place::NextDoor, false)?;
    let mut mint = Mint::new(world.authority.master_key()?, VERIFIER);
    let _ = (outsider.came_back(to.ip(), std::time::Duration::ZERO), outsider.got_through(to.ip()));
    let before = world.verifier.counters()?;
    for number in 0..MANY as u16 {
        outsider.send(&wrong(&world, &outsider, &mut mint, suite, carrier, number)?)?;
    }
    let reasons = [DropReason::BadTag, DropReason::UnknownEpoch].map(DropReason::name);
    let refused = || -> Result<u64> {
        let grown = world.verifier.counters()?.since(&before);
        Ok(reasons.iter().filter_map(|reason| grown.get(*reason)).sum())
    };
    ensure!(poll(SOON, || refused().is_ok_and(|refused| refused == MANY)), "{} of {MANY} refused", refused()?);
    let (back, through) = (outsider.came_back(to.ip(), QUIET), outsider.got_through(to.ip()));
    ensure!(back.is_empty() && through.is_empty(), "with wrong tokens came {back:?}, got through {through:?}");
    ensure!(world.services.echo.connections() == served, "some were served");

    let (stack, before) = (Stack::read(alice)?, world.verifier.counters()?);
    alice
        .enter(|| (0..MANY).try_for_each(|number| dial(to, SOON).map(drop).with_context(|| format!("try {number}"))))?;
    ensure!(Stack::read(alice)?.syn_retransmissions()? == stack.syn_retransmissions()?, "some needed a second SYN");
    let grown = world.verifier.counters()?.since(&before);
    ensure!(grown.get("token") == Some(&MANY) && world.services.echo.connections() == served + MANY, "{grown:?}");
    println!("{suite} by {}: 0 / 0 / {MANY}", carrier.name());
    Ok(())
}

#[test]
fn of_siphash_in_the_tail_right_tokens_get_in_and_nothing_else() {
    test(|| none_none_all(Suite::Siphash.name(), Carrier::Tail));
}

#[test]
fn of_siphash_in_a_shim_right_tokens_get_in_and_nothing_else() {
    test(|| none_none_all(Suite::Siphash.name(), Carrier::Shim));
}

#[test]
fn of_aes_cmac_in_the_tail_right_tokens_get_in_and_nothing_else() {
    test(|| none_none_all(Suite::AesCmac.name(), Carrier::Tail));
}

#[test]
fn of_aes_cmac_in_a_shim_right_tokens_get_in_and_nothing_else() {
    test(|| none_none_all(Suite::AesCmac.name(), Carrier::Shim));
}

#[test]
fn of_sha224_in_a_shim_right_tokens_get_in_and_nothing_else() {
    test(|| none_none_all(ls::NAME, Carrier::Shim));
}
