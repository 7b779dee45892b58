//! Sends TCP connections as UDP datagrams (wire.md §4.8). This module has the devices through which segments pass
//! before they become datagrams, and the verifier's programs for answers.
//!
//! The kernel passes super-packets with incomplete checksums to the network card. A program can't turn a super-packet
//! into datagrams. So the programs send the packets of these connections through a separate pair of devices without
//! offloads. In front of such a device, the kernel itself cuts super-packets and completes checksums.

use crate::attachments::{Attachments, Pins, Spot};
use crate::interface::{HELPING, Interface};
use crate::netlink;
use crate::object::{Loaded, Opened};
use crate::run::{self, Ran};
use crate::verifier::Verifier;
use anyhow::{Context, Result, bail};
use std::os::fd::AsFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tcp_in_udp.bpf.o"));
/// Commands of linux/ethtool.h that set an offload: checksums of sent packets (without which the kernel also cuts
/// super-packets itself), and merging of received packets.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
/// The attribute of linux/veth.h that describes the other device of the pair.
const VETH_INFO_PEER: u16 = 1;
/// The devices take packets of every length.
const MTU: u32 = 65_535;
const TABLES: [&str; 2] = ["flows4", "flows6"];

/// A pair of virtual devices. Packets that are sent into one device come out of the other. The pair outlives the
/// process.
pub struct Devices {
    /// The device into which the programs send segments.
    pub out: Interface,
    /// The device out of which the segments come.
    pub back: Interface,
}

impl Devices {
    /// Makes the pair of devices of this owner, or takes over the pair that an earlier process has made. `owner` is the
    /// name of the directory of the owner's pins.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not make the devices, or does not turn off their offloads.
    pub fn set_up(owner: &str) -> Result<Self> {
        let [out, back] = names(owner);
        if Interface::named(&out).is_err() {
            netlink::change(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &pair(&out, &back))
                .with_context(|| format!("cannot make the devices {out} and {back} (veth)"))?;
        }
        let devices = Self { out: Interface::named(&out)?, back: Interface::named(&back)? };
        for device in [&devices.out, &devices.back] {
            // Neither device has an address. A kernel without IPv6 has no such setting.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", device.name), "1");
            device.turn_off(ETHTOOL_STXCSUM)?;
            device.turn_off(ETHTOOL_SGRO)?;
        }
        let offloads = devices.out.offloads();
        if let Some(left) = offloads.iter().find(|name| ["tx-checksumming", "tcp-segmentation-offload"].contains(name))
        {
            bail!("the kernel does not turn off all offloads of {}: {left} is on", devices.out.name);
        }
        for device in [&devices.out, &devices.back] {
            netlink::change(libc::RTM_NEWLINK, 0, &link(device.index, libc::IFF_UP as u32))
                .with_context(|| format!("cannot turn on the device {}", device.name))?;
        }
        Ok(devices)
    }

    /// Removes the pair of devices of this owner, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not remove the devices.
    pub fn remove(owner: &str) -> Result<()> {
        let [out, _] = names(owner);
        let Ok(device) = Interface::named(&out) else { return Ok(()) };
        netlink::change(libc::RTM_DELLINK, 0, &link(device.index, 0))
            .with_context(|| format!("cannot remove the device {out}"))
    }
}

/// Returns the names of an owner's devices. They are short, and differ between owners.
fn names(owner: &str) -> [String; 2] {
    // FNV-1a.
    let hash = owner.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ["a", "b"].map(|end| format!("{HELPING}{:06x}{end}", (hash >> 24 ^ hash) & 0xff_ffff))
}

/// struct ifinfomsg of linux/rtnetlink.h, with these flags set.
fn link(index: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    [index, flags, flags].iter().for_each(|number| body.extend(number.to_ne_bytes()));
    body
}

/// The description of a pair of devices.
fn pair(out: &str, back: &str) -> Vec<u8> {
    let named = |name: &str| {
        let mut body = link(0, 0);
        put(&mut body, libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        put(&mut body, libc::IFLA_MTU, &MTU.to_ne_bytes());
        body
    };
    let (mut data, mut info) = (Vec::new(), Vec::new());
    put(&mut data, VETH_INFO_PEER, &named(back));
    put(&mut info, libc::IFLA_INFO_KIND, b"veth");
    put(&mut info, libc::IFLA_INFO_DATA, &data);
    let mut body = named(out);
    put(&mut body, libc::IFLA_LINKINFO, &info);
    body
}

/// Appends an attribute.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The loaded programs for answers to clients whose segments came as datagrams.
pub struct Answers {
    object: Loaded,
    attachments: Attachments,
}

impl Answers {
    /// Loads the programs next to `verifier`, and attaches to `devices` the program that turns segments into datagrams.
    /// The directory `pins` must be for these programs only.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program or does not attach it, or if a map can't be made or taken over.
    pub fn load(verifier: &Verifier, devices: &Devices, pins: Option<Pins>) -> Result<Self> {
        let mut opened = Opened::new("tcp_in_udp", OBJECT)?;
        opened.configure(verifier.config())?;
        opened.set_constant(".rodata.helping", &devices.out.index)?;
        opened.share(verifier.object(), &TABLES)?;
        if let Some(pins) = &pins {
            opened.pin(pins, &["ways"])?;
        }
        let mut answers = Self { object: opened.load("tcp_in_udp")?, attachments: Attachments::new(pins) };
        answers.attach_at(&devices.back, Spot::Reordering)?;
        Ok(answers)
    }

    /// Attaches to an interface the program that sends answers into the devices. If an earlier process pinned this
    /// attachment, takes it over.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program.
    pub fn attach(&mut self, interface: &Interface) -> Result<()> {
        self.attach_at(interface, Spot::Answers)
    }

    fn attach_at(&mut self, interface: &Interface, spot: Spot) -> Result<()> {
        self.attachments.attach(self.object.program(spot.program())?.as_fd(), interface, spot).map(drop)
    }

    /// Pins the attachments, so that they outlive this process. Removes pinned attachments that this process did not
    /// make or take over.
    ///
    /// # Errors
    ///
    /// Fails if an attachment can't be pinned, or if a pin can't be removed.
    pub fn last(&self) -> Result<()> {
        self.attachments.pin()?;
        self.attachments.remove_others()
    }

    /// Detaches from one interface, which need not exist any more.
    pub fn forget(&mut self, interface: &str) {
        self.attachments.forget(interface, Spot::Answers);
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Runs the program at this spot on a frame, without a network.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run(&self, spot: Spot, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(spot.program())?, frame, 1)
            .context("cannot run the program that handles answers")
    }
}
