//! Tests many connections over a path that loses, doubles and delays SYNs. Each connection must be admitted, and its
//! stream must contain only the client's bytes.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::ensure;
use lab::nobody::succeed;
use lab::rough::Rough;
use lab::test;
use lab::world::{ECHO, FRONT4};

use super::programs;
use super::stage::Stage;

#[test]
fn a_thousand_connections_of_a_thousand_are_admitted_and_hold_no_token() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let script = nobody.write("many.py", programs::MANY, 0o644)?;
        let rough = Rough::start(&stage.network.alice, 5)?;
        let before = stage.services.echo.connections();
        let python = ["/usr/bin/python3", &script.to_string_lossy(), FRONT4, &ECHO.to_string(), "1000"];
        let text = succeed(&mut nobody.supervised(python))?;
        ensure!(text.trim() == "1000 of 1000", "{text}");
        let counts = rough.counts();
        let [seen, lost, doubled, late] =
            [&counts.seen, &counts.lost, &counts.doubled, &counts.late].map(|count| count.load(Relaxed));
        ensure!(seen > 1000 && lost >= 20 && doubled >= 20 && late >= 20, "{seen} {lost} {doubled} {late}");
        let opened = stage.services.echo.connections() - before;
        ensure!(opened >= 1000, "{opened}");
        Ok(())
    });
}
