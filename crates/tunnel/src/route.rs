//! Addresses and routes of the tunnel's device, by route netlink (linux/rtnetlink.h).

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const TABLE_MAIN: u8 = 254;
const BY_ADMINISTRATOR: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
const BLACKHOLE: u8 = 6;
/// Metric of the route to the device, and of the one to nowhere that takes over when the device is gone.
const METRICS: (u32, u32) = (1, u32::MAX);

/// Gives the device `index` an address of its own, without a network.
///
/// # Errors
/// If the kernel refuses.
pub fn add_address(index: u32, address: IpAddr) -> Result<()> {
    let bytes = octets(address);
    let mut body = vec![family(address), (bytes.len() * 8) as u8, 0, SCOPE_UNIVERSE];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &bytes);
    attribute(&mut body, IFA_ADDRESS, &bytes);
    request(RTM_NEWADDR, &body).with_context(|| format!("cannot give the tunnel's device the address {address}"))
}

/// Routes a network to the device `index`.
///
/// # Errors
/// If the kernel refuses.
pub fn add_route(network: &IpNet, index: u32) -> Result<()> {
    route(network, UNICAST, METRICS.0, Some(index))
}

/// Routes a network to nowhere, unless a better route exists. The route stays when this process ends: packets to the
/// network never leave by another interface.
///
/// # Errors
/// If the kernel refuses.
pub fn add_dead_end(network: &IpNet) -> Result<()> {
    route(network, BLACKHOLE, METRICS.1, None)
}

fn route(network: &IpNet, kind: u8, metric: u32, device: Option<u32>) -> Result<()> {
    let address = network.network();
    let scope = if device.is_some() && address.is_ipv4() { SCOPE_LINK } else { SCOPE_UNIVERSE };
    let mut body = vec![family(address), network.prefix_len(), 0, 0, TABLE_MAIN, BY_ADMINISTRATOR, scope, kind];
    body.extend(0u32.to_ne_bytes());
    attribute(&mut body, RTA_DST, &octets(address));
    attribute(&mut body, RTA_PRIORITY, &metric.to_ne_bytes());
    if let Some(device) = device {
        attribute(&mut body, RTA_OIF, &device.to_ne_bytes());
    }
    request(RTM_NEWROUTE, &body).with_context(|| format!("cannot route {network} to the tunnel's device"))
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Sends a request that creates or replaces something, and waits for the kernel's answer.
fn request(kind: u16, body: &[u8]) -> Result<()> {
    let opened =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::NetlinkRoute));
    let socket = opened.context("cannot open a netlink socket")?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error).into()),
        None => bail!("the kernel's answer is too short"),
    }
}
