//! The network of these tests: services, authority and verifier of the standard world, without an agent.

use anyhow::Result;
use lab::Nobody;
use lab::world::{Authority, Network, Services, Verifier, Way, policy};

/// The standard world without an agent. Fields are declared in the order in which they are dropped.
pub struct Stage {
    pub verifier: Verifier,
    pub authority: Authority,
    pub services: Services,
    pub network: Network,
}

impl Stage {
    /// Starts everything, with clients behind a strict NAT.
    pub fn new() -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        let verifier = Verifier::start(&network.server, &authority)?;
        Ok(Self { verifier, authority, services, network })
    }

    /// Creates a user without privileges and logs them in as Alice.
    pub fn alice(&self) -> Result<Nobody<'_>> {
        let nobody = Nobody::new(&self.network.alice)?;
        nobody.login(&self.authority, "alice")?;
        Ok(nobody)
    }
}
