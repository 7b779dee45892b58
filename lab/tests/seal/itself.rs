//! A program that seals its own packets, without agent and privileges.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lab::test;
use lab::world::{ECHO, FRONT4, PASSWORD};
use wire::seal::Treatment;

use crate::seals_itself::talk;
use crate::stage::{Stage, nothing_outside, readable};

const SAID: &str = "sealed by the program itself";

#[test]
fn a_program_takes_the_keys_and_seals_itself_as_its_rule_demands_and_not_less() {
    test(|| {
        let stage = Stage::new()?;
        let cable = stage.observe()?;
        let (url, ca) = (stage.authority.url(), std::fs::read(stage.authority.ca())?);
        let to = SocketAddrV4::new(FRONT4.parse()?, ECHO);
        let say = |weaker: Option<Treatment>| -> Result<String> {
            // Mallory's machine has no agent. The thread is nobody, with no privileges.
            stage.network.mallory.enter(|| {
                // SAFETY: these are numbers; the thread alone becomes the user.
                let done = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
                ensure!(done == 0, "cannot become nobody");
                talk((&url, &ca), ("mallory", PASSWORD), to, SAID, weaker)
            })
        };
        let answer = say(None)?;
        ensure!(answer.starts_with(SAID), "the echo says {answer:?}");
        nothing_outside(&cable)?;
        let before = stage.verifier.counters()?.named("too_weak");
        ensure!(say(Some(Treatment::Authenticate)).is_err(), "a weaker treatment than the rule demands came through");
        ensure!(stage.verifier.counters()?.named("too_weak") > before, "the verifier did not notice");
        let file = cable.stop()?;
        // The program sent records in clear, although its rule demands more: the path reads them, and the verifier drops them.
        ensure!(stage.services.echo.datagrams() >= 1 && readable(&file, &[SAID])? == [SAID], "not as expected");
        Ok(())
    });
}
