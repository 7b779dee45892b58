//! LS, Table 1: requests without a token, with an invalid token, and with a valid token. The paper made 20 tries of each;
//! this test makes a thousand, through the switch and the gateway.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use lab::forge::{Packet, Tcp};
use lab::service::dial;
use lab::world::{ECHO, FRONT4, SOON};
use lab::{Capture, Port, poll, test};
use wire::shim::Content;
use wire::{DropReason, LsToken, Pair};

use super::layout::{End, frames, is};
use super::stage::{BRIDGE, Stage, echo};

const TRIES: u16 = 1000;
/// Number of packets sent before the test waits for the verifier: the way to the controller and back has a queue.
const BURST: u16 = 50;
const FIRST_PORT: u16 = 20_000;
const MALLORY: &str = "10.2.0.1";

/// Sends packets of the device without a key, and returns how many of them the verifier dropped for this reason.
fn denied(stage: &Stage, reason: DropReason, packet: impl Fn(u16) -> Vec<u8>) -> Result<u64> {
    let port = Port::open(&stage.network.mallory, "eth0")?;
    let before = stage.verifier.counters()?.dropped(reason);
    let dropped = || Ok::<_, anyhow::Error>(stage.verifier.counters()?.dropped(reason) - before);
    for number in 0..TRIES {
        port.send(&packet(number))?;
        let sent = u64::from(number) + 1;
        if number % BURST == BURST - 1 {
            ensure!(poll(SOON, || dropped().is_ok_and(|count| count >= sent)), "{} of {sent} dropped", dropped()?);
        }
    }
    dropped()
}

#[test]
fn table_1_with_a_thousand_tries_of_each_kind() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let _browser = stage.log_in(alice, "alice")?;
        let inside = Capture::start(&stage.network.server, "eth0")?;
        let (from, to): (IpAddr, IpAddr) = (MALLORY.parse()?, FRONT4.parse()?);
        let macs = (mallory.mac("eth0")?, stage.network.router.mac(BRIDGE)?);
        let syn = |number: u16| Packet::new(from, to).ethernet(macs.0, macs.1).tcp(Tcp::syn(FIRST_PORT + number, ECHO));

        // The server's own cable carries admitted packets only.
        let admitted =
            || Ok::<_, anyhow::Error>(frames(&inside)?.iter().filter(|frame| is(frame, 6, End::From(MALLORY))).count());
        let without = denied(&stage, DropReason::NoToken, |number| syn(number).frame())?;
        let without = (admitted()?, without);

        // Of a valid token, everything but the hash.
        let handle = stage.handles()?.pop().context("no pair")?;
        let handle = u64::from_str_radix(handle.trim_start_matches("0x"), 16)?;
        let pair = Pair::of(wire::Handle(handle)).context("the grant is no pair")?;
        let invalid = denied(&stage, DropReason::BadTag, |number| {
            let token = LsToken { pair, nonce2: number, tag: [number as u8; 28] };
            syn(number).shimmed(&Content::Ls(token.encode()).encode()).frame()
        })?;
        let invalid = (admitted()? - without.0, invalid);
        let served = stage.echo.connections();

        let before = stage.verifier.counters()?;
        let mut valid = 0_u64;
        alice.enter(|| {
            for number in 0..TRIES {
                dial(echo(), SOON).with_context(|| format!("connection {number}"))?;
                valid += 1;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        let tokens = stage.verifier.counters()?.named("token") - before.named("token");
        let valid = (valid, u64::from(TRIES) - valid);

        println!("LS, Table 1    no token  invalid token  valid token");
        println!("access allowed {:>8}  {:>13}  {:>11}", without.0, invalid.0, valid.0);
        println!("access denied  {:>8}  {:>13}  {:>11}", without.1, invalid.1, valid.1);
        let tries = u64::from(TRIES);
        ensure!(
            without == (0, tries) && invalid == (0, tries) && valid == (tries, 0),
            "{without:?} {invalid:?} {valid:?}"
        );
        ensure!(tokens == tries, "{tokens} tokens were admitted");
        ensure!(served == 0, "{served} connections before the first with a token");
        ensure!(stage.echo.connections() == tries, "{} connections were served", stage.echo.connections());
        Ok(())
    });
}
