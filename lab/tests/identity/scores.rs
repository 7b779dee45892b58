//! Tests of scores: an application complains about a person, whose access ends while the score is low.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::nobody::NOBODY;
use lab::world::{FRONT4, PUBLIC4};
use lab::{poll, test};

use crate::web::{HTTP, Page, WORKER, complain, get};
use crate::{ALICE, Stage, about, again, url, visit};

const SOON: Duration = Duration::from_secs(30);
/// No rule says anything about how fast points come back that a test would have to wait for.
const SLOW: &str = "\n[scores]\nhalf_life = \"1d\"\n";
/// Half of the missing points come back in ten seconds.
const FAST: &str = "\n[scores]\nhalf_life = \"10s\"\n";
const NO_LOW_SCORES: &str = r#"
[[rules]]
name = "no low scores"
action = "deny"
who = "tag:low-score"
to = "front"
"#;

fn flags() -> [String; 2] {
    ["--complainants".into(), format!("www-data={FRONT4}:{HTTP}")]
}

impl Stage {
    fn with_scores(scores: &str) -> Result<Self> {
        Self::with_policy(&flags(), NO_LOW_SCORES, scores)
    }

    /// Complains, as this user, about the person behind a connection from this public port to the front.
    fn complain(&self, user: u32, port: u16, more: &[&str]) -> Result<Page> {
        complain(&self.network.server, &self.room, user, &about(port, more))
    }

    /// Returns whether the server's stack still has the connection from this port, and the verifier its flow.
    fn has_flow(&self, port: u16) -> Result<bool> {
        Ok(self.verifier.flows()?.iter().any(|flow| flow["client"] == format!("{PUBLIC4}:{port}")))
    }

    fn scores(&self) -> Result<String> {
        self.authority.command(&["score", "list"], &[])
    }
}

#[test]
fn a_score_that_falls_cuts_access_within_a_second_until_it_is_reset() {
    test(|| {
        let stage = Stage::with_scores(SLOW)?;
        let (mut stream, page) = visit(&stage.network.alice, 45_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        for score in [80, 60] {
            let Page(status, said) = stage.complain(WORKER, 45_000, &["X-Vouchsafe-About: abuse"])?;
            ensure!((status, said.as_str()) == (200, format!("score: {score}").as_str()), "{status}: {said}");
        }
        ensure!(again(&mut stream)?.ends_with(ALICE), "a complaint that leaves the score above the bound cuts");
        let began = Instant::now();
        let Page(status, said) = stage.complain(WORKER, 45_000, &["X-Vouchsafe-About: abuse"])?;
        ensure!((status, said.as_str()) == (200, "score: 40"), "{status}: {said}");
        ensure!(poll(SOON, || stage.has_flow(45_000).is_ok_and(|has| !has)), "the flow is still there");
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(1), "it took {took:?}");
        eprintln!("the flow ended {took:?} after the application complained");
        ensure!(get(&stage.network.alice, &url(false, "/"), &["--max-time", "2"]).is_err(), "Alice gets in again");
        let listed = stage.scores()?;
        let words: Vec<_> =
            listed.lines().filter(|line| line.starts_with("alice")).flat_map(str::split_whitespace).collect();
        ensure!(words == ["alice", "40", "low"], "{listed}");

        let done = stage.authority.command(&["score", "reset"], &["alice"])?;
        ensure!(done.contains("100"), "{done}");
        let back = || get(&stage.network.alice, &url(false, "/"), &["--max-time", "2"]).is_ok_and(|page| page.0 == 200);
        ensure!(poll(SOON, back), "Alice does not get in after the reset");
        let audit = stage.authority.command(&["audit"], &["--person", "alice"])?;
        for event in ["complaint", "score_low", "score_reset"] {
            ensure!(audit.contains(event), "no {event} in\n{audit}");
        }
        Ok(())
    });
}

#[test]
fn access_comes_back_when_the_score_has_recovered() {
    test(|| {
        let stage = Stage::with_scores(FAST)?;
        let (_stream, page) = visit(&stage.network.alice, 46_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        for _ in 0..3 {
            let page = stage.complain(WORKER, 46_000, &["X-Vouchsafe-About: abuse"])?;
            ensure!(page.0 == 200, "{page:?}");
        }
        ensure!(poll(SOON, || stage.has_flow(46_000).is_ok_and(|has| !has)), "the flow is still there");
        let back = || get(&stage.network.alice, &url(false, "/"), &["--max-time", "2"]).is_ok_and(|page| page.0 == 200);
        ensure!(poll(SOON, back), "Alice does not get in after her score has recovered");
        Ok(())
    });
}

#[test]
fn only_those_who_serve_a_connection_complain_and_not_without_end() {
    test(|| {
        let stage = Stage::with_scores(&format!("{SLOW}per_application = 10\n"))?;
        let (_stream, page) = visit(&stage.network.alice, 47_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        let abuse = "X-Vouchsafe-About: abuse";
        ensure!(stage.complain(NOBODY, 47_000, &[abuse])?.0 == 403, "a user who may not even ask");
        let page = stage.complain(0, 47_000, &[abuse])?;
        ensure!(page.0 == 403 && page.1.contains("complainants"), "root is no complainant: {page:?}");
        ensure!(stage.complain(WORKER, 47_001, &[abuse])?.0 == 401, "nobody's connection");
        let mut elsewhere = about(47_000, &[abuse]);
        elsewhere[3] = "X-Vouchsafe-Server-Port: 22".into();
        let page = complain(&stage.network.server, &stage.room, WORKER, &elsewhere)?;
        ensure!(page.0 == 403, "another service: {page:?}");
        ensure!(
            stage.complain(WORKER, 47_000, &[])?.0 == 400
                && stage.complain(WORKER, 47_000, &["X-Vouchsafe-About: x"])?.0 == 400
        );
        let few = stage.complain(WORKER, 47_000, &["X-Vouchsafe-About: failed_login", "X-Vouchsafe-Points: 1"])?;
        ensure!(few.0 == 200, "{few:?}");
        ensure!(stage.scores()?.lines().any(|line| line.contains("alice")), "{}", stage.scores()?);

        // One point is used. Ten is what the application may take off in an hour.
        let nine = stage.complain(WORKER, 47_000, &[abuse, "X-Vouchsafe-Points: 9"])?;
        ensure!(nine.0 == 200, "{nine:?}");
        let more = stage.complain(WORKER, 47_000, &["X-Vouchsafe-About: failed_login", "X-Vouchsafe-Points: 1"])?;
        ensure!(more.0 == 429 && more.1.contains("too many"), "{more:?}");
        let listed = stage.scores()?;
        ensure!(listed.contains("90"), "{listed}");
        Ok(())
    });
}
