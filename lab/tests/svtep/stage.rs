//! The stage of these tests: endpoints on one underlay, run by daemons, with tenants behind them, and a real authority.
//!
//! ```text
//! tenants ── endpoint 1 ──┐
//! tenants ── endpoint 2 ──┤ core ── authority
//! tenants ── endpoint 3 ──┘
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use lab::Namespace;
use lab::net::veth;
use lab::world::{AUTHORITY, Authority, Svtep};

/// The router between the endpoints and the authority, and the authority's configuration.
pub struct Core {
    pub authority: Authority,
    _host: Namespace,
    pub core: Namespace,
    networks: String,
}

/// The host of an endpoint that is not enrolled yet.
pub struct Host {
    pub net: Namespace,
    pub number: u8,
    /// The endpoint's address on the underlay.
    pub address: String,
    settings: String,
}

/// An endpoint with its daemon.
pub struct Endpoint {
    pub svtep: Svtep,
    pub host: Host,
}

/// A machine behind an interface of an endpoint.
pub struct Tenant {
    pub net: Namespace,
    pub address: IpAddr,
}

impl Tenant {
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

/// Returns an endpoint's address.
pub fn address(number: u8) -> String {
    format!("192.0.2.{}", 4 * number + 2)
}

impl Core {
    /// Starts an authority that has no networks yet, and accepts requests by UDP.
    pub fn new() -> Result<Self> {
        Self::with(&format!("segments = \"{AUTHORITY}:8443\"\n"))
    }

    /// Starts an authority that has no networks yet, with this configuration.
    pub fn with(configuration: &str) -> Result<Self> {
        let (core, host) = (Namespace::new("core")?, Namespace::new("authority")?);
        core.forward()?;
        veth(&core, "auth", "198.51.100.254/24", &host, "eth0", &format!("{AUTHORITY}/24"))?;
        host.route("default", "198.51.100.254")?;
        let authority = Authority::make(&host, "", configuration, &[])?;
        let networks = "authority = \"198.51.100.10\"\n".to_owned();
        Ok(Self { authority, _host: host, core, networks })
    }

    /// Adds a host to the underlay, with a service account.
    pub fn host(&self, number: u8) -> Result<Host> {
        let (device, net) = (format!("e{number}"), Namespace::new(&format!("e{number}"))?);
        let gateway = format!("192.0.2.{}", 4 * number + 1);
        let own = address(number);
        veth(&self.core, &device, &format!("{gateway}/30"), &net, "underlay", &format!("{own}/30"))?;
        net.route("default", &gateway)?;
        self.host_at(net, number, own)
    }

    /// Adds a host whose endpoint has the address `2001:db8:NUMBER::2`. The host has an IPv4 address, too, by which it
    /// reaches the authority.
    pub fn host6(&self, number: u8) -> Result<Host> {
        let net = self.router(&format!("e{number}"), number)?;
        self.host_at(net, number, format!("2001:db8:{number:x}::2"))
    }

    /// Adds a namespace with the addresses `2001:db8:NUMBER::2` and [`address`] on the underlay, and routes to the
    /// others.
    pub fn router(&self, device: &str, number: u8) -> Result<Namespace> {
        let net = Namespace::new(device)?;
        let [gateway, own] = [1, 2].map(|last| format!("2001:db8:{number:x}::{last}"));
        let [gateway4, own4] = [4 * number + 1, 4 * number + 2].map(|last| format!("192.0.2.{last}"));
        let of = |four: &str, six: &str| format!("{four}/30 {six}/64");
        veth(&self.core, device, &of(&gateway4, &gateway), &net, "underlay", &of(&own4, &own))?;
        net.route("default", &gateway4)?;
        net.route("default", &gateway)?;
        Ok(net)
    }

    fn host_at(&self, net: Namespace, number: u8, own: String) -> Result<Host> {
        let key = net.dir().join("service.key");
        self.authority.add_service(&format!("host-{number}"), &["hosts"], &key)?;
        let settings = format!("underlay = \"underlay\"\naddress = \"{own}\"\nservice_key = {key:?}\n");
        Ok(Host { net, number, address: own, settings })
    }

    /// Adds virtual networks to the authority's configuration.
    pub fn networks(&mut self, networks: &[(&str, u32)]) {
        for (name, vni) in networks {
            self.networks += &format!("[[networks]]\nname = \"{name}\"\nvni = {vni}\n");
        }
    }

    /// Sets the verifiers on the path to an endpoint.
    pub fn path(&mut self, to: u8, verifiers: &[&str]) {
        self.networks += &format!("[[paths]]\nto = \"{}\"\nverifiers = {verifiers:?}\n", address(to));
    }

    /// Sets the fixed path from one endpoint to another: the verifiers, and the hop of each except the last.
    pub fn fixed_path(&mut self, [from, to]: [&Host; 2], verifiers: &[&str], hops: &[&str]) {
        self.networks += &format!(
            "[[paths]]\nfrom = \"{}\"\nto = \"{}\"\nverifiers = {verifiers:?}\nfixed = true\nhops = {hops:?}\n",
            from.address, to.address
        );
    }

    /// Adds an alternative to the path that was set last.
    pub fn alternative(&mut self, verifiers: &[&str], hops: &[&str]) {
        self.networks += &format!("[[paths.alternatives]]\nverifiers = {verifiers:?}\nhops = {hops:?}\n");
    }

    /// Adds a tenant of a network behind a host, with this interface id and address.
    pub fn tenant(&mut self, host: &mut Host, network: (&str, u32), id: u16, address: &str) -> Result<Tenant> {
        let (device, (name, vni)) = (format!("t{id}"), network);
        let net = Namespace::new(&format!("{name}-{id}"))?;
        veth(&host.net, &device, "", &net, "eth0", &format!("{address}/24"))?;
        host.settings += &format!(
            "[[tenants]]\ninterface = \"{device}\"\nnetwork = \"{name}\"\nvni = {vni}\nid = {id}\naddress = \"{address}\"\n"
        );
        let endpoint = &host.address;
        self.networks += &format!(
            "[[places]]\nnetwork = \"{name}\"\naddress = \"{address}\"\nendpoint = \"{endpoint}\"\ninterface = {id}\n\
             asked_by = \"person:host-{}\"\n",
            host.number
        );
        Ok(Tenant { net, address: address.parse()? })
    }

    /// Makes the authority use the networks, paths and places added so far, and this policy.
    pub fn apply(&self, policy: &str) -> Result<()> {
        fs::write(self.authority.dir().join("networks.toml"), &self.networks)?;
        // `service add --group` makes service accounts members of the group, so the policy names none.
        self.authority.apply(&format!("[groups]\nhosts = []\n{policy}")).map(drop)
    }

    /// Enrols an endpoint as `endpoint-NUMBER` and runs it.
    pub fn run(&self, host: Host) -> Result<Endpoint> {
        let id = format!("endpoint-{}", host.number);
        let mut svtep = Svtep::enrol(&host.net, &self.authority, &id, &host.settings)?;
        svtep.run()?;
        Ok(Endpoint { svtep, host })
    }
}

/// Returns a policy with one receiver in a network, and a rule by which it accepts senders on these terms.
pub fn receiver(network: &str, address: &str, services: &str, terms: &str) -> String {
    format!(
        "[[receivers]]\nname = \"{network}-web\"\naddress = \"{address}\"\nservices = [{services}]\nnetwork = \"{network}\"\n\
         [[rules]]\nname = \"{network}\"\naction = \"allow\"\nwho = \"group:hosts\"\nto = \"{network}-web\"\n{terms}\n"
    )
}
