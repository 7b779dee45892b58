//! Adds addresses and routes for the tunnel's device, by route netlink (linux/rtnetlink.h).

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWRULE: u16 = 32;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const FIB_MATCH: u32 = 0x2000;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const TO_TABLE: u8 = 1;
const NO_DETECTION: u8 = 2;
const TABLE_MAIN: u8 = 254;
const TABLE_LOCAL: u8 = 255;
const TABLE_LONG: u8 = 252;
/// Number of the routing table with the addresses that belong to this machine only for packets out of the tunnel. The
/// rule that selects this table has the same number as its priority.
const TABLE_KEPT: u32 = 30_323;
const BY_ADMINISTRATOR: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
const BLACKHOLE: u8 = 6;
/// Metrics of the route to the device, and of the blackhole route that takes over when the device no longer exists.
const METRICS: (u32, u32) = (1, u32::MAX);

/// Adds a single address (/32 or /128) to the device with this index.
///
/// # Errors
///
/// Fails if the kernel does not add the address.
pub fn add_address(index: u32, address: IpAddr) -> Result<()> {
    request(RTM_NEWADDR, MAKE, &address_message(index, address))
        .with_context(|| format!("cannot give the tunnel's device the address {address}"))
}

fn address_message(index: u32, address: IpAddr) -> Vec<u8> {
    let bytes = octets(address);
    let mut body = vec![family(address), (bytes.len() * 8) as u8, NO_DETECTION, SCOPE_UNIVERSE];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &bytes);
    attribute(&mut body, IFA_ADDRESS, &bytes);
    body
}

/// Assigns `address`, which the machine has lost, to the tunnel's device with the index `index` and the name `device`.
/// So flows in the tunnel can continue. Sockets still send from the address. Packets to the address that come out of
/// this device are still delivered. On other interfaces, the machine does not answer for the address, because a
/// neighbour possibly has it now.
///
/// # Errors
/// Fails if the kernel does not add the address, a rule or a route.
pub fn keep_address(index: u32, device: &str, address: IpAddr) -> Result<()> {
    add_address(index, address)?;
    // An IPv6 address is answered for on its own device only.
    if address.is_ipv6() {
        return Ok(());
    }
    let kept = || {
        request(RTM_NEWRULE, MAKE_NEW, &rule(address, device)).or_else(ignore(libc::EEXIST))?;
        request(RTM_NEWROUTE, MAKE, &local(address, index, TABLE_KEPT))?;
        request(RTM_DELROUTE, 0, &local(address, index, TABLE_LOCAL.into())).or_else(ignore(libc::ESRCH))
    };
    kept().with_context(|| {
        format!("this machine has lost {address}, and cannot keep it on {device} for flows in the tunnel")
    })
}

/// Removes an address that [`keep_address`] has assigned. Does nothing if the device no longer has the address.
///
/// # Errors
/// Fails if the kernel does not remove the address or its route.
pub fn release_address(index: u32, address: IpAddr) -> Result<()> {
    if address.is_ipv4() {
        request(RTM_DELROUTE, 0, &local(address, index, TABLE_KEPT)).or_else(ignore(libc::ESRCH))?;
    }
    request(RTM_DELADDR, 0, &address_message(index, address))
        .or_else(ignore(libc::EADDRNOTAVAIL))
        .with_context(|| format!("cannot take the address {address} from the tunnel's device"))
}

/// Returns a handler of errors that turns the error with this code into success.
fn ignore(code: i32) -> impl Fn(anyhow::Error) -> Result<()> {
    move |error| match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
        Some(found) if found == code => Ok(()),
        _ => Err(error),
    }
}

/// Returns the body of a route message (`struct rtmsg`) by which the address belongs to this machine.
fn local(address: IpAddr, index: u32, table: u32) -> Vec<u8> {
    let bytes = octets(address);
    let short = u8::try_from(table).unwrap_or(TABLE_LONG);
    let mut body = vec![family(address), (bytes.len() * 8) as u8, 0, 0, short, BY_ADMINISTRATOR, SCOPE_HOST, LOCAL];
    if short == TABLE_LOCAL {
        // The kernel may delete the route whichever program made it.
        body[5] = 0;
    }
    body.extend(0u32.to_ne_bytes());
    attribute(&mut body, RTA_DST, &bytes);
    attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
    attribute(&mut body, RTA_TABLE, &table.to_ne_bytes());
    body
}

/// Returns the body of a rule message (`struct fib_rule_hdr`) by which packets from the device use the table
/// [`TABLE_KEPT`].
fn rule(address: IpAddr, device: &str) -> Vec<u8> {
    let mut body = vec![family(address), 0, 0, 0, TABLE_LONG, 0, 0, TO_TABLE];
    body.extend(0u32.to_ne_bytes());
    let mut name = device.as_bytes().to_vec();
    name.push(0);
    attribute(&mut body, FRA_IIFNAME, &name);
    attribute(&mut body, FRA_PRIORITY, &TABLE_KEPT.to_ne_bytes());
    attribute(&mut body, FRA_TABLE, &TABLE_KEPT.to_ne_bytes());
    body
}

/// Adds a route to a network through the device with this index.
///
/// # Errors
///
/// Fails if the kernel does not add the route.
pub fn add_route(network: &IpNet, index: u32) -> Result<()> {
    route(network, UNICAST, METRICS.0, Some(index))
}

/// Adds a blackhole route with the worst metric: packets to the network are dropped unless another route exists. The
/// route stays when this process ends, so that no packet to the network leaves through another interface.
///
/// # Errors
///
/// Fails if the kernel does not add the route.
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
    request(RTM_NEWROUTE, MAKE, &body).with_context(|| format!("cannot route {network} to the tunnel's device"))
}

/// Returns the MTU of the route to an address, in bytes. If the route has no MTU, or if the route's device has a
/// smaller one, returns the MTU of the device.
///
/// # Errors
/// Fails if there is no route, or if the kernel's answer has no device.
pub fn mtu(to: IpAddr) -> Result<usize> {
    let bytes = octets(to);
    // struct rtmsg. Without FIB_MATCH, the kernel would answer with what ICMP errors have told it.
    let mut body = vec![family(to), (bytes.len() * 8) as u8, 0, 0, 0, 0, 0, 0];
    body.extend(FIB_MATCH.to_ne_bytes());
    attribute(&mut body, RTA_DST, &bytes);
    let answer = ask(RTM_GETROUTE, 0, &body)?;
    let route = answer.get(16 + 12..).context("the kernel's answer is too short")?;
    let (mut devices, mut own) = (Vec::new(), None);
    for (kind, value) in attributes(route) {
        match kind {
            RTA_OIF => devices.extend(number(value)),
            // struct rtnexthop, of which the device's index is the second word
            RTA_MULTIPATH => {
                let mut rest = value;
                while let Some([low, high, ..]) = rest.first_chunk::<8>() {
                    devices.extend(rest.get(4..8).and_then(number));
                    let length = usize::from(u16::from_ne_bytes([*low, *high])).max(8);
                    rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            RTA_METRICS => {
                own = attributes(value).find(|(kind, _)| *kind == RTAX_MTU).and_then(|(_, value)| number(value));
            }
            _ => {}
        }
    }
    let devices: Vec<u32> = devices.into_iter().map(device_mtu).collect::<Result<_>>()?;
    let device = devices.into_iter().min().context("the route has no device")?;
    Ok(own.map_or(device, |own| own.min(device)) as usize)
}

/// Limits the super-packets that the kernel sends into a device to this many bytes.
///
/// # Errors
/// Fails if there is no such device, or if the kernel does not take the limit.
pub fn limit_super_packets(device: &str, bytes: u32) -> Result<()> {
    // struct ifinfomsg. Without an index, the name tells which device is meant.
    let mut body = vec![0; 16];
    let mut name = device.as_bytes().to_vec();
    name.push(0);
    attribute(&mut body, IFLA_IFNAME, &name);
    attribute(&mut body, IFLA_GSO_MAX_SIZE, &bytes.to_ne_bytes());
    request(RTM_SETLINK, 0, &body)
        .with_context(|| format!("cannot limit the super-packets of the device {device:?} to {bytes} bytes"))
}

fn device_mtu(index: u32) -> Result<u32> {
    // struct ifinfomsg
    let mut body = vec![0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = ask(RTM_GETLINK, 0, &body)?;
    let link = answer.get(16 + 16..).context("the kernel's answer is too short")?;
    let mtu = attributes(link).find(|(kind, _)| *kind == IFLA_MTU).and_then(|(_, value)| number(value));
    mtu.context("the device has no MTU")
}

/// Returns the attributes in a message: kind and value.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[a, b, c, d] = rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits tell how the value is coded.
        Some((u16::from_ne_bytes([c, d]) & 0x3fff, value))
    })
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
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

/// Flags of a request that makes an object or replaces an existing one, and of a request that fails if the object
/// exists.
const MAKE: i32 = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
const MAKE_NEW: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// Sends a request, and waits until the kernel has carried it out.
fn request(kind: u16, flags: i32, body: &[u8]) -> Result<()> {
    ask(kind, libc::NLM_F_ACK | flags, body).map(drop)
}

/// Sends a request, and returns the first message of the kernel's answer.
fn ask(kind: u16, flags: i32, body: &[u8]) -> Result<Vec<u8>> {
    let opened =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::NetlinkRoute));
    let socket = opened.context("cannot open a netlink socket")?;
    let flags = libc::NLM_F_REQUEST | flags;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = vec![0; 16 * 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(length);
    let (kind, code) = (answer.get(4..6), answer.get(16..20).and_then(number));
    match (kind, code) {
        (Some(kind), Some(code)) if kind == (libc::NLMSG_ERROR as u16).to_ne_bytes() => match code as i32 {
            0 => Ok(answer),
            error => Err(io::Error::from_raw_os_error(-error).into()),
        },
        (Some(_), Some(_)) => Ok(answer),
        _ => bail!("the kernel's answer is too short"),
    }
}
