//! The stage of these tests: endpoints on one underlay, tenants behind them, and segments that are installed directly.

use std::net::IpAddr;

use anyhow::{Context, Result};
use datapath::clock;
use datapath::interface::Interface;
use datapath::svtep::{Config, Svtep};
use lab::Namespace;
use lab::mint::now;
use lab::net::veth;
use lab::segments::{EPOCH_LENGTH, Giver, MAX_LIFETIME, Minted};
use wire::map::ProofsConfig;
use wire::{Ends, InterfaceId, Segment, SegmentFlags, Vni};

/// MTU of the underlay.
pub const MTU: u32 = 1500;

/// The router between the endpoints, and the issuer of segments.
pub struct Core {
    pub host: Namespace,
    pub giver: Giver,
}

/// A tunnel endpoint.
pub struct Endpoint {
    pub host: Namespace,
    pub address: IpAddr,
    /// The endpoint's id as a verifier.
    pub id: String,
    /// Hardware address of the core's side of the cable.
    pub next: [u8; 6],
    pub program: Svtep,
}

/// A machine behind an interface of an endpoint, in a virtual network.
pub struct Tenant {
    pub host: Namespace,
    pub address: IpAddr,
    pub vni: Vni,
    pub id: InterfaceId,
    /// Index of the interface at the endpoint.
    pub interface: u32,
}

impl Core {
    pub fn new() -> Result<Self> {
        let host = Namespace::new("core")?;
        host.forward()?;
        Ok(Self { host, giver: Giver::new([9; 32]) })
    }

    /// Creates an endpoint with the address `198.51.100.(4 × number + 2)`.
    pub fn endpoint(&self, number: u8) -> Result<Endpoint> {
        self.endpoint_at(number, [1, 2].map(|last| IpAddr::from([198, 51, 100, 4 * number + last])), 30)
    }

    /// Creates an endpoint with the address `2001:db8:(number)::2`.
    pub fn endpoint6(&self, number: u8) -> Result<Endpoint> {
        let part = u16::from(number);
        self.endpoint_at(number, [1, 2].map(|last| IpAddr::from([0x2001, 0xdb8, part, 0, 0, 0, 0, last])), 64)
    }

    fn endpoint_at(&self, number: u8, [gateway, address]: [IpAddr; 2], length: u8) -> Result<Endpoint> {
        let (id, device) = (format!("endpoint-{number}"), format!("e{number}"));
        let host = Namespace::new(&device)?;
        let of = |address: IpAddr| format!("{address}/{length}");
        veth(&self.host, &device, &of(gateway), &host, "underlay", &of(address))?;
        host.route("default", &gateway.to_string())?;
        let program = host.enter(|| -> Result<Svtep> {
            let underlay = Interface::named("underlay")?;
            let proofs = ProofsConfig { epoch_length: EPOCH_LENGTH, max_lifetime: MAX_LIFETIME };
            let config = Config { proofs, remembered: 1024, mtu: MTU, reports: 100 };
            let mut program = Svtep::load(&underlay, &config, None)?;
            program.attach_underlay(&underlay)?;
            Ok(program)
        })?;
        let (epoch, key) = self.giver.key(&id, now())?;
        program.proofs.learn(self.giver.authority, epoch, &key)?;
        program.proofs.stand_before(&[(address, if address.is_ipv4() { 32 } else { 128 })])?;
        program.proofs.set_clock(clock::coarse_to_unix())?;
        Ok(Endpoint { host, address, id, next: self.host.mac(&device)?, program })
    }

    /// Returns a segment without proofs, which is not installed at an endpoint.
    pub fn segment(
        &self,
        from: (&Endpoint, &Tenant),
        to: (&Endpoint, &Tenant),
        service: Option<(u8, u16)>,
    ) -> (Segment, Ends) {
        let (sending, receiving) = (from.0.address, to.0.address);
        let ends = Ends { sending, receiving, sender: from.1.address, receiver: to.1.address };
        (self.giver.segment(&ends, to.1.id, service), ends)
    }

    /// Installs a segment at the endpoint of the tenant `from`. The endpoint of the tenant `to` is its only verifier.
    pub fn give(
        &self,
        from: (&Endpoint, &Tenant),
        to: (&Endpoint, &Tenant),
        service: Option<(u8, u16)>,
        flags: SegmentFlags,
    ) -> Result<Minted> {
        let (segment, ends) = self.segment(from, to, service);
        let segment = Segment { flags: segment.flags.with(flags, true), ..segment };
        let given = self.giver.prove(segment, from.1.vni, ends, &[&to.0.id])?;
        let (key, entry) = given.entry(from.1.interface)?;
        from.0.program.segments.set(&key, &entry)?;
        Ok(given)
    }

    /// Installs a segment, and one for the answers.
    pub fn give_both(&self, from: (&Endpoint, &Tenant), to: (&Endpoint, &Tenant), service: (u8, u16)) -> Result<()> {
        self.give(from, to, Some(service), SegmentFlags::REPLY)?;
        self.give(to, from, Some(service), SegmentFlags::RETURN).map(drop)
    }
}

impl Endpoint {
    /// Adds a tenant that has this address in a virtual network, behind a new interface.
    pub fn tenant(&mut self, network: u32, id: u16, address: &str) -> Result<Tenant> {
        let (device, vni) = (format!("t{id}"), Vni::new(network).context("24 bits")?);
        let host = Namespace::new(&format!("n{network}-{id}"))?;
        let length = if address.contains(':') { 64 } else { 24 };
        veth(&self.host, &device, "", &host, "eth0", &format!("{address}/{length}"))?;
        let program = &mut self.program;
        let interface = self.host.enter(|| -> Result<u32> {
            let interface = Interface::named(&device)?;
            program.attach_tenant(&interface, vni, InterfaceId(id))?;
            Ok(interface.index)
        })?;
        Ok(Tenant { host, address: address.parse()?, vni, id: InterfaceId(id), interface })
    }
}
