//! Network interfaces, and their relations: which interface lies above which other interface.

use crate::netlink;
use anyhow::{Context, Result};

const ARPHRD_ETHER: u32 = 1;
const ARPHRD_LOOPBACK: u32 = 772;
/// Value from linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 3;
/// Offloads by the names that `ethtool -k` uses: the command that queries each, and the bits of the answer
/// (linux/ethtool.h).
const OFFLOADS: [(&str, u32, u32); 6] = [
    ("tx-checksumming", 0x16, u32::MAX),
    ("tcp-segmentation-offload", 0x1e, u32::MAX),
    ("generic-segmentation-offload", 0x23, u32::MAX),
    ("generic-receive-offload", 0x2b, u32::MAX),
    (LARGE_RECEIVE_OFFLOAD, 0x25, 1 << 15),
    ("rx-vlan-offload", 0x25, 1 << 8),
];

/// The beginning of the names of helping devices ([`crate::tcp_in_udp`]).
pub(crate) const HELPING: &str = "vs-udp-";

/// Reports whether a name is that of a helping device ([`crate::tcp_in_udp`]). Packets pass through such a device only
/// on their way to another interface.
pub fn is_helping_device(name: &str) -> bool {
    name.starts_with(HELPING)
}

/// Name of the offload by which a network card merges received packets.
pub const LARGE_RECEIVE_OFFLOAD: &str = "large-receive-offload";

/// A network interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// Length of the link header: 14, or 0 on links without one (tun, wwan).
    pub link_header: u32,
}

impl Interface {
    /// Looks up the interface with the name `name`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such interface.
    pub fn named(name: &str) -> Result<Self> {
        let index =
            nix::net::if_::if_nametoindex(name).with_context(|| format!("no interface {name:?} (see `ip link`)"))?;
        let link_header = match link_type(name) {
            Some(ARPHRD_ETHER | ARPHRD_LOOPBACK) | None => 14,
            Some(_) => 0,
        };
        Ok(Self { name: name.to_owned(), index, link_header })
    }

    /// Lists every interface except loopback and the helping devices of [`crate::tcp_in_udp`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not list its interfaces.
    pub fn all() -> Result<Vec<Self>> {
        let list = nix::net::if_::if_nameindex().context("cannot list the interfaces")?;
        let names = list.iter().map(|entry| entry.name().to_string_lossy().into_owned());
        names.filter(|name| name != "lo" && !is_helping_device(name)).map(|name| Self::named(&name)).collect()
    }

    /// Returns the name of the interface's kernel driver, if it has one.
    pub fn driver(&self) -> Option<String> {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        ask(&self.name, libc::SIOCETHTOOL as _, |request| {
            request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut info).cast();
        })?;
        let name = std::ffi::CStr::from_bytes_until_nul(&info.driver).ok()?.to_str().ok()?;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Returns the MTU: the length of the longest packet in bytes, without the link header.
    pub fn mtu(&self) -> Option<u32> {
        let request = ask(&self.name, libc::SIOCGIFMTU as _, |_| {})?;
        // SAFETY: the kernel filled the union with an MTU.
        u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
    }

    /// Reports whether this is a veth interface whose other end is in another network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not list its interfaces.
    pub fn is_cable_elsewhere(&self) -> Result<bool> {
        let found = layers()?.into_iter().find(|layer| layer.index == self.index);
        Ok(found.is_some_and(|layer| layer.kind == "veth" && layer.link.is_none()))
    }

    /// Returns those active offloads that change how programs see packets. The names are those that `ethtool -k` uses.
    pub fn offloads(&self) -> Vec<&'static str> {
        let is_on = |&(_, command, bits): &(&str, u32, u32)| {
            let mut value = Value { command, data: 0 };
            let answer = ask(&self.name, libc::SIOCETHTOOL as _, |request| {
                request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
            });
            answer.is_some() && value.data & bits != 0
        };
        OFFLOADS.iter().filter(|offload| is_on(offload)).map(|(name, ..)| *name).collect()
    }

    /// Turns off an offload. `command` is the command of linux/ethtool.h that sets this offload.
    pub(crate) fn turn_off(&self, command: u32) -> Result<()> {
        let mut value = Value { command, data: 0 };
        let answer = ask(&self.name, libc::SIOCETHTOOL as _, |request| {
            request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
        });
        answer.map(drop).with_context(|| format!("cannot turn off an offload of {}", self.name))
    }
}

/// `struct ethtool_drvinfo` of linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Returns the link's ARP hardware type, by ioctl. sysfs is no source for it: in a network namespace that was entered
/// without remounting sysfs, sysfs shows another namespace's interfaces.
fn link_type(name: &str) -> Option<u32> {
    let request = ask(name, libc::SIOCGIFHWADDR as _, |_| {})?;
    // SAFETY: the kernel filled the union with a hardware address.
    Some(u32::from(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family }))
}

/// Queries the kernel about the interface with the name `name`. Data that `fill` makes the request point to must
/// outlive the call.
fn ask(name: &str, what: libc::Ioctl, fill: impl FnOnce(&mut libc::ifreq)) -> Option<libc::ifreq> {
    use std::os::fd::AsRawFd;
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )
    .ok()?;
    // SAFETY: an all-zero ifreq is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (room, byte) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *room = byte as _;
    }
    fill(&mut request);
    // SAFETY: the request, and the data it points to, live through the call and are of the command's type.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_mut(&mut request)) };
    (result == 0).then_some(request)
}

/// An interface and its relations to other interfaces in this network namespace, as the kernel reports them by netlink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Index of the interface.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Kind of a virtual interface, such as `bridge` or `vlan`; empty for other interfaces.
    pub kind: String,
    /// Index of the lower interface, or of the other end of a veth pair. `None` if there is none, or if it is in
    /// another network namespace.
    pub link: Option<u32>,
    /// Index of the bridge, bond or other master to which the interface belongs; `None` if it belongs to none.
    pub master: Option<u32>,
    /// Whether the interface is up.
    pub up: bool,
    /// Whether other interfaces on the same lower interface reach this interface directly, without passing through the
    /// lower interface. This occurs with macvlan and ipvlan.
    pub meets_siblings: bool,
}

/// Lists every interface of this network namespace.
///
/// # Errors
///
/// Fails if the kernel does not list its interfaces.
pub fn layers() -> Result<Vec<Layer>> {
    // struct ifinfomsg of linux/rtnetlink.h.
    let messages = netlink::dump(libc::RTM_GETLINK, &[0; 16]).context("cannot read how the interfaces are stacked")?;
    Ok(messages.iter().filter_map(|(_, body)| layer(body)).collect())
}

/// Reports whether the kernel delivers siblings' frames to an interface of this kind with these settings
/// (linux/if_link.h).
fn meets_siblings(kind: &str, settings: &[u8]) -> bool {
    const MACVLAN_MODE: u16 = 1;
    const MACVLAN_MODE_BRIDGE: [u8; 4] = 4u32.to_ne_bytes();
    const IPVLAN_FLAGS: u16 = 2;
    let value = |wanted: u16| {
        let mut rest = settings;
        std::iter::from_fn(move || netlink::attribute(&mut rest))
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    match kind {
        "macvlan" | "macvtap" => value(MACVLAN_MODE).is_some_and(|mode| mode == MACVLAN_MODE_BRIDGE),
        // Private and vepa are the only flags.
        "ipvlan" | "ipvtap" => value(IPVLAN_FLAGS).is_none_or(|flags| flags.iter().all(|byte| *byte == 0)),
        _ => false,
    }
}

fn layer(body: &[u8]) -> Option<Layer> {
    const IFLA_LINK_NETNSID: u16 = 37;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let (index, flags) = (number(body.get(4..8)?)?, number(body.get(8..12)?)?);
    let mut layer = Layer { index, up: flags & libc::IFF_UP as u32 != 0, ..Layer::default() };
    let (mut rest, mut elsewhere) = (body.get(16..)?, false);
    while let Some((kind, value)) = netlink::attribute(&mut rest) {
        match kind {
            libc::IFLA_IFNAME => layer.name = text(value),
            libc::IFLA_LINK => layer.link = number(value),
            libc::IFLA_MASTER => layer.master = number(value),
            libc::IFLA_LINKINFO => {
                let mut rest = value;
                while let Some((kind, value)) = netlink::attribute(&mut rest) {
                    match kind {
                        libc::IFLA_INFO_KIND => layer.kind = text(value),
                        libc::IFLA_INFO_DATA => layer.meets_siblings = meets_siblings(&layer.kind, value),
                        _ => {}
                    }
                }
            }
            IFLA_LINK_NETNSID => elsewhere = true,
            _ => {}
        }
    }
    layer.link = layer.link.filter(|link| !elsewhere && *link != index);
    Some(layer)
}
