//! Measures the throughput of tenants' packets through a tunnel with a proof in each packet. The baseline is the
//! kernel's own VXLAN on the same path.

use anyhow::{Context, Result};
use lab::Namespace;
use lab::net::veth;
use measure::{Bound, Figures};
use wire::SegmentFlags;
use wire::packet::TCP;

use crate::lane::Lane;
use crate::stage::{Core, Endpoint, Tenant};
use crate::throughput::{in_turns, on_one_processor};

const OPENINGS: usize = 8;
const TENANTS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
/// Tenants' MTU under VXLAN, whose headers include an inner Ethernet header.
const VXLAN_MTU: u32 = 1450;

/// Two tenants behind two endpoints, with a router between the endpoints.
struct Ours {
    _core: Core,
    _endpoints: [Endpoint; 2],
    tenants: [Tenant; 2],
}

impl Ours {
    fn new() -> Result<Self> {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
        let (from, to) = (a.tenant(100, 1, TENANTS[0])?, b.tenant(100, 1, TENANTS[1])?);
        core.give((&a, &from), (&b, &to), None, SegmentFlags::REPLY)?;
        core.give((&b, &to), (&a, &from), None, SegmentFlags::RETURN)?;
        // Issues a segment for one service, as an authority would. The endpoint's lookup tries the service first.
        for service in 0..2 {
            core.give_both((&a, &from), (&b, &to), (TCP, crate::lane::PORT + service))?;
        }
        Ok(Self { _core: core, _endpoints: [a, b], tenants: [from, to] })
    }

    fn lane(&self) -> Result<Lane> {
        let [from, to] = &self.tenants;
        Lane::between(&from.host, &to.host, to.address, 1)
    }
}

/// Two tenants connected by VXLAN devices and bridges in place of Vouchsafe's programs.
struct Vxlan {
    _hosts: Vec<Namespace>,
    tenants: [Namespace; 2],
}

impl Vxlan {
    fn new() -> Result<Self> {
        let core = Namespace::new("core")?;
        core.forward()?;
        let mut hosts = Vec::new();
        let mut tenants = Vec::new();
        for (number, address) in (1u8..).zip(TENANTS) {
            let (host, tenant) = (Namespace::new("vxlan")?, Namespace::new("tenant")?);
            let at = |number: u8, last: u8| format!("198.51.100.{}", 4 * number + last);
            let (device, other) = (format!("e{number}"), at(3 - number, 2));
            let [gateway, own] = [1, 2].map(|last| format!("{}/30", at(number, last)));
            veth(&core, &device, &gateway, &host, "underlay", &own)?;
            host.route("default", &at(number, 1))?;
            veth(&host, "t1", "", &tenant, "eth0", &format!("{address}/24"))?;
            tenant.ip(&format!("link set eth0 mtu {VXLAN_MTU}"))?;
            host.ip(&format!("link add vx0 type vxlan id 100 remote {other} dstport 4789 dev underlay"))?;
            host.ip("link add br0 type bridge")?;
            for port in ["vx0", "t1"] {
                host.ip(&format!("link set {port} master br0 up"))?;
            }
            host.ip("link set br0 up")?;
            hosts.push(host);
            tenants.push(tenant);
        }
        hosts.push(core);
        let tenants = <[Namespace; 2]>::try_from(tenants).ok().context("two tenants")?;
        Ok(Self { _hosts: hosts, tenants })
    }

    fn lane(&self) -> Result<Lane> {
        let [from, to] = &self.tenants;
        Lane::between(from, to, TENANTS[1].parse()?, 1)
    }
}

/// Measures the throughput of one connection through the tunnel: with its ends on two processors, and on a single
/// processor, where every nanosecond of extra work shows.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let (ours, vxlan) = (Ours::new()?, Vxlan::new()?);
    let turns = || in_turns(OPENINGS, || Ok((ours.lane()?, vxlan.lane()?)));
    turns()?.add(figures, "tunnel.throughput", Bound::AtLeast(0.85));
    on_one_processor(turns)?.add(figures, "tunnel.throughput_one_processor", Bound::AtLeast(0.85));
    Ok(())
}
