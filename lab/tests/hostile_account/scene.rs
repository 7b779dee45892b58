//! A gateway with inside addresses, before many hosts that Alice and Mallory may both use.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use lab::service::Echo;
use lab::world::{Authority, ECHO, Network, POOL, Services, Verifier, Way, policy};

/// Number of hosts. Each has every service, and each pair of host and service needs a grant of its own.
const HOSTS: u32 = 200;
const FIRST_HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 30);
/// TCP ports of the services.
const SERVICES: [u16; 3] = [ECHO, 77, 78];

/// All parts of the test except the clients. Fields are declared in the order in which they are dropped.
pub struct Scene {
    /// The verifier on the gateway.
    pub verifier: Verifier,
    /// The authority.
    pub authority: Authority,
    _services: (Services, Vec<Echo>),
    /// Namespaces and cables.
    pub network: Network,
}

impl Scene {
    /// Starts everything. Nobody is logged in.
    pub fn new() -> Result<Self> {
        let network = Network::behind_gateway(Way::Direct)?;
        // Start these before the hosts' addresses exist, because an echo runs a thread for each address that it finds.
        let echoes = SERVICES[1..].iter().map(|port| Echo::start(&network.server, *port)).collect::<Result<_>>()?;
        let services = (Services::start(&network)?, echoes);
        let addresses: Vec<_> = hosts().iter().map(|host| format!("{host}/24")).collect();
        network.server.address("eth0", &addresses.join(" "))?;
        let authority = Authority::start(&network.authority, &rules())?;
        let verifier = Verifier::start_with(network.front(), &authority, &["--inside", "eth1", "--pool", POOL])?;
        Ok(Self { verifier, authority, _services: services, network })
    }
}

/// Returns the addresses of the hosts.
pub fn hosts() -> Vec<IpAddr> {
    (0..HOSTS).map(|nth| Ipv4Addr::from_bits(FIRST_HOST.to_bits() + nth).into()).collect()
}

/// Returns the addresses and ports of every service of every host.
pub fn places() -> impl Iterator<Item = SocketAddr> {
    SERVICES.iter().flat_map(|port| hosts().into_iter().map(|host| SocketAddr::new(host, *port)))
}

/// Returns rules by which both accounts may use the hosts. Mallory may also use destinations whose grants are
/// short-lived, so that the authority keeps issuing new grants to her.
fn rules() -> String {
    let hosts: Vec<_> = hosts().iter().map(|host| format!("\"{host}\"")).collect();
    let services = SERVICES.map(|port| format!("\"tcp/{port}\""));
    format!(
        r#"{}
[[receivers]]
name = "hosts"
address = [{}]
services = [{}]
verifier = "edge"

[[rules]]
action = "allow"
who = ["person:alice", "person:mallory"]
to = "hosts"

[[rules]]
action = "allow"
who = "person:mallory"
to = "dark"

[[rules]]
action = "allow"
who = "person:mallory"
to = "front"
lifetime = "20s"
granularity = "flow"
"#,
        policy("5m"),
        hosts.join(", "),
        services.join(", ")
    )
}
