//! Programs that do nothing: they probe what this kernel and its interfaces support, and serve as a baseline for
//! benches.

use crate::attachments::link::{AttachPoint, Link};
use crate::hook::{self, Mode};
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use crate::run::{self, Ran};
use crate::tc::{Attachment, kernel_version};
use anyhow::{Context, Error, Result};
use libbpf_rs::Program;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// The loaded programs.
pub struct Probe(Loaded);

/// The XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Id of the program.
    pub id: u32,
    /// Name of the program, truncated by the kernel to 15 bytes.
    pub name: String,
    /// Attachment mode; `None` if there are several programs.
    pub mode: Option<Mode>,
}

/// Returns the XDP program on `interface`, whichever process attached it.
pub fn occupant(interface: &Interface) -> Option<Occupant> {
    let said = hook::query(interface).ok()?;
    let id = [said.prog_id, said.drv_prog_id, said.skb_prog_id, said.hw_prog_id].into_iter().find(|id| *id != 0)?;
    let info = Program::fd_from_id(id).ok().and_then(|program| information(program.as_fd()).ok());
    let name = info.map(|info| info.name.map(|byte| byte as u8)).unwrap_or_default();
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    Some(Occupant { id, name, mode: hook::mode(interface).ok() })
}

fn information(program: BorrowedFd<'_>) -> Result<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open for the call, and `info` has room for `length` bytes.
    let result = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    anyhow::ensure!(result == 0, "cannot read the properties of a program: {}", std::io::Error::last_os_error());
    Ok(info)
}

/// Reports whether the driver of `interface` declares XDP support; `None` before Linux 6.3, where drivers don't declare
/// it.
pub fn driver_has_xdp(interface: &Interface) -> Option<bool> {
    /// NETDEV_XDP_ACT_BASIC of linux/netdev.h.
    const BASIC: u64 = 1;
    let said = hook::query(interface).ok()?;
    (kernel_version() >= (6, 3)).then_some(said.feature_flags & BASIC != 0)
}

/// An attachment that lasts as long as this value.
#[must_use = "dropping it detaches at once"]
pub struct Attached(#[allow(dead_code, reason = "held for its drop")] Link);

impl Probe {
    /// Loads the programs: the first step that fails on a host without BPF.
    pub fn load() -> Result<Self> {
        object::log_through_tracing();
        Opened::new("probe", OBJECT)?.load("probe").map(Self)
    }

    /// Reports whether the kernel compiles programs rather than interpreting them.
    pub fn is_compiled(&self) -> Result<bool> {
        Ok(information(self.0.program("pass")?.as_fd())?.jited_prog_len > 0)
    }

    /// Finds out how XDP would be attached to `interface`, by briefly attaching a program that passes everything.
    /// Returns the mode and, if the driver has XDP but the kernel falls back to generic XDP, the driver's reason.
    ///
    /// # Errors
    /// If the interface has another XDP program, or accepts none.
    pub fn xdp(&self, interface: &Interface) -> Result<(Mode, Option<Error>)> {
        let program = self.0.program("pass")?;
        let (_link, refusal) = Link::attach_xdp(program.as_fd(), interface)?;
        Ok((hook::mode(interface)?, refusal))
    }

    /// Attaches an XDP program that passes everything, or everything but TCP SYNs over IPv4 to port 9.
    pub fn attach_xdp(&self, interface: &Interface, drop_syns: bool) -> Result<Attached> {
        self.attach(interface, if drop_syns { "drop_syns" } else { "pass" }).map(Attached)
    }

    /// Attaches an XDP program that drops everything: for benches.
    #[doc(hidden)]
    pub fn attach_sink(&self, interface: &Interface) -> Result<Attached> {
        self.attach(interface, "drop_all").map(Attached)
    }

    fn attach(&self, interface: &Interface, program: &str) -> Result<Link> {
        let program = self.0.program(program)?;
        Link::attach(program.as_fd(), interface.index, AttachPoint::Xdp, 0)
            .with_context(|| format!("cannot attach an XDP program to interface {}", interface.name))
    }

    /// Finds out which tc hook this kernel has for the agent, by briefly attaching to `interface` through TCX.
    pub fn tc(&self, interface: &Interface) -> Result<Attachment> {
        let program = self.0.program("next")?;
        Ok(match Link::attach(program.as_fd(), interface.index, AttachPoint::TcxEgress, 0) {
            Ok(_) => Attachment::Tcx,
            Err(_) => Attachment::Clsact,
        })
    }

    /// Runs the empty XDP program on one frame.
    pub fn run_xdp(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("pass")?, frame, repeat)
    }

    /// Runs the empty tc program on one frame.
    pub fn run_tc(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("next")?, frame, repeat)
    }
}
