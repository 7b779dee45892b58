//! A virtual network with two tunnel endpoints, and a tenant behind each of them. The first tenant calls the second.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lab::Namespace;
use lab::middlebox::Rules;
use lab::net::veth;
use lab::service::Echo;
use lab::world::{AUTHORITY, ECHO, Svtep};

use crate::stage::{Host, Stage, lock};

/// The tenants' addresses.
const TENANTS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
/// The network's number.
const VNI: u32 = 100;

/// Returns the address of an endpoint in the underlay.
pub fn address(number: usize) -> String {
    format!("198.18.{number}.1")
}

/// The endpoints and the tenants. Fields are declared in the order in which they are dropped.
pub struct Overlay {
    /// The endpoints.
    pub endpoints: Vec<Svtep>,
    _echo: Echo,
    tenants: Vec<Namespace>,
    _places: Vec<Namespace>,
}

impl Overlay {
    /// Starts an endpoint in each of `places`. They enrol at different authorities.
    pub fn start(places: Vec<Namespace>, hosts: &[Host]) -> Result<Self> {
        let (mut tenants, mut endpoints) = (Vec::new(), Vec::new());
        for ((number, place), host) in (1..).zip(&places).zip(hosts.iter().rev()) {
            let (tenant, at) = (Namespace::new(&format!("tenant{number}"))?, TENANTS[number - 1]);
            veth(place, "tenant", "", &tenant, "eth0", &format!("{at}/24"))?;
            let (own, key) = (address(number), place.dir().join("service.key"));
            let settings = format!(
                "underlay = \"eth0\"\naddress = \"{own}\"\nservice_key = {key:?}\n[[tenants]]\ninterface = \
                 \"tenant\"\nnetwork = \"blue\"\nvni = {VNI}\nid = {number}\naddress = \"{at}\"\n"
            );
            let authority = lock(&host.authority);
            authority.add_service(&format!("host-{number}"), &["hosts"], &key)?;
            let mut endpoint = Svtep::enrol(place, &authority, &format!("endpoint-{number}"), &settings)?;
            drop(authority);
            endpoint.run()?;
            endpoints.push(endpoint);
            tenants.push(tenant);
        }
        // Each port is a segment of its own, and all of them end at the echo.
        std::mem::forget(Rules::redirect(&tenants[1], &format!("tcp dport 1000-60000 redirect to :{ECHO}"))?);
        let echo = Echo::start(&tenants[1], ECHO)?;
        Ok(Self { endpoints, _echo: echo, tenants, _places: places })
    }

    /// Returns the machine of the tenant that calls.
    pub fn caller(&self) -> &Namespace {
        &self.tenants[0]
    }

    /// Returns a port of the tenant that answers.
    pub fn at(port: u16) -> SocketAddr {
        Stage::at(TENANTS[1], port)
    }

    /// Checks that the endpoint of the tenant that calls got many segments, and that the authorities refused none. The
    /// return segments may come with those for the way there, so the other endpoint need not request any.
    pub fn check(&self) -> Result<()> {
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            let count = |name| endpoint.count("answers", name);
            let (given, refused, failed) = (count("given")?, count("refused")?, count("failed")?);
            println!("an endpoint got {given} segments; {refused} requests were refused, {failed} failed");
            let is_enough = at > 0 || given > 20;
            ensure!(is_enough && refused == 0, "{given} segments, {refused} refused: {}", endpoint.log());
            ensure!(!endpoint.log().contains("ERROR"), "{}", endpoint.log());
        }
        Ok(())
    }
}

/// Returns the content of `networks.toml`.
pub fn networks() -> String {
    let mut text = format!("authority = \"{AUTHORITY}\"\n[[networks]]\nname = \"blue\"\nvni = {VNI}\n");
    for (number, tenant) in (1..).zip(TENANTS) {
        let endpoint = address(number);
        text += &format!(
            "[[paths]]\nto = \"{endpoint}\"\nverifiers = [\"endpoint-{number}\"]\n[[places]]\nnetwork = \"blue\"\n\
             address = \"{tenant}\"\nendpoint = \"{endpoint}\"\ninterface = {number}\nasked_by = \
             \"person:host-{number}\"\n"
        );
    }
    text
}

/// Returns the part of the policy that is about the network.
pub fn policy() -> String {
    format!(
        "[[receivers]]\nname = \"tenant\"\naddress = \"{}\"\nservices = \"all\"\nnetwork = \"blue\"\n[[rules]]\nname = \
         \"tenants\"\naction = \"allow\"\nwho = \"group:hosts\"\nto = \"tenant\"\nlifetime = \"10s\"\nreply = true\n",
        TENANTS[1]
    )
}
