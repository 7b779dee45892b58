//! Grants by UDP: the agent gets them by one datagram where the network lets it through, and over HTTPS elsewhere.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::middlebox::Rules;
use lab::service::call;
use lab::world::{
    AUTHORITY, AUTHORITY_PORT, Agent, Authority, DARK4, ECHO, FRONT4, Network, SOON, Services, Verifier, Way, policy,
};
use lab::{Namespace, poll, test};

/// A world whose authority accepts requests by UDP. Fields are declared in the order in which they are dropped.
struct Stage {
    agent: Agent,
    _verifier: Verifier,
    authority: Authority,
    _services: Services,
    network: Network,
}

impl Stage {
    fn new(way: Way, lifetime: &str) -> Result<Self> {
        let network = Network::new(way)?;
        let services = Services::start(&network)?;
        let line = format!("segments = \"{AUTHORITY}:{AUTHORITY_PORT}\"\n");
        let authority = Authority::start_with(&network.authority, &policy(lifetime), &line)?;
        let verifier = Verifier::start(&network.server, &authority)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, _verifier: verifier, authority, _services: services, network })
    }

    /// Returns the numbers of grants that came by UDP and over HTTPS.
    fn ways(&self) -> Result<(u64, u64)> {
        let status = self.agent.status()?;
        let of = |way: &str| status["session"]["grants_by"][way].as_u64().context("no number of grants in the status");
        Ok((of("udp")?, of("https")?))
    }

    /// Requests grants for other services of the dark host, until one comes by this way.
    fn grant_by_udp(&self) -> Result<()> {
        let (before, _) = self.ways()?;
        let mut port = 20_000;
        let came = poll(SOON, || {
            port += 1;
            // Nothing listens there: the server refuses the connection once its SYN has a token.
            let _ = call(&self.network.alice, dark(port), Duration::from_millis(300));
            self.ways().is_ok_and(|(udp, _)| udp > before)
        });
        ensure!(came, "no grant came by UDP: {:?}", self.ways()?);
        Ok(())
    }
}

fn dark(port: u16) -> std::net::SocketAddr {
    format!("{DARK4}:{port}").parse().expect("an address")
}

/// Drops the datagrams between clients and the authority's UDP port.
fn without_udp(router: &Namespace) -> Result<Rules<'_>> {
    Rules::forward(router, &format!("ip daddr {AUTHORITY} udp dport {AUTHORITY_PORT} drop"))
}

#[test]
fn grants_and_renewals_come_by_udp_through_a_translator() {
    test(|| {
        let stage = Stage::new(Way::Nat, "10s")?;
        stage.grant_by_udp()?;
        call(&stage.network.alice, format!("{FRONT4}:{ECHO}").parse()?, SOON)?;
        let (udp, https) = stage.ways()?;
        // The grant for the front ends after ten seconds, so a grant in use is renewed meanwhile.
        let renewed = poll(SOON, || {
            let _ = call(&stage.network.alice, dark(ECHO), SOON);
            let _ = call(&stage.network.alice, format!("{FRONT4}:{ECHO}").parse().expect("an address"), SOON);
            stage.ways().is_ok_and(|(now, _)| now > udp + 1)
        });
        ensure!(renewed, "not renewed by UDP: {:?}, before {:?}", stage.ways()?, (udp, https));
        Ok(())
    });
}

#[test]
fn where_the_network_drops_the_datagrams_grants_come_over_https() {
    test(|| {
        let stage = Stage::new(Way::Direct, "5m")?;
        stage.grant_by_udp()?;
        let dropped = without_udp(&stage.network.router)?;
        let (udp, https) = stage.ways()?;
        let begun = Instant::now();
        call(&stage.network.alice, dark(ECHO), SOON).context("a new destination without UDP")?;
        let took = begun.elapsed();
        ensure!(stage.ways()? == (udp, https + 1), "{:?}, before {:?}", stage.ways()?, (udp, https));
        ensure!(took < Duration::from_secs(5), "it took {took:?}");
        drop(dropped);
        Ok(())
    });
}

#[test]
fn after_a_restart_of_the_authority_the_agent_gets_another_line() {
    test(|| {
        let mut stage = Stage::new(Way::Direct, "5m")?;
        stage.grant_by_udp()?;
        stage.authority.stop()?;
        stage.authority.run()?;
        stage.grant_by_udp().context("after the restart")
    });
}
