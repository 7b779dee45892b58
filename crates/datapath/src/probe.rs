//! Minimal programs, most of which let every packet pass. They show what this kernel and its interfaces support, and
//! benches compare other programs with them.

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

/// The loaded programs for probing.
pub struct Probe(Loaded);

/// An XDP program that is attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Id of the program.
    pub id: u32,
    /// Name of the program, truncated by the kernel to 15 bytes.
    pub name: String,
    /// Mode in which the program is attached; `None` if there are several programs.
    pub mode: Option<Mode>,
}

/// Returns the XDP program on `interface`, whichever process attached it. Returns `None` if there is no program.
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

/// Reports whether the driver of `interface` declares that it supports XDP. Returns `None` before Linux 6.3, where
/// drivers do not declare this.
pub fn driver_has_xdp(interface: &Interface) -> Option<bool> {
    /// NETDEV_XDP_ACT_BASIC of linux/netdev.h.
    const BASIC: u64 = 1;
    let said = hook::query(interface).ok()?;
    (kernel_version() >= (6, 3)).then_some(said.feature_flags & BASIC != 0)
}

/// An attachment of a program. It ends when this value is dropped.
#[must_use = "dropping it detaches at once"]
pub struct Attached(#[allow(dead_code, reason = "held for its drop")] Link);

impl Probe {
    /// Loads the programs. On a host without BPF, this is the first step that fails.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load() -> Result<Self> {
        object::log_through_tracing();
        Opened::new("probe", OBJECT)?.load("probe").map(Self)
    }

    /// Reports whether the kernel compiles BPF programs to machine code instead of interpreting them.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not describe a loaded program.
    pub fn is_compiled(&self) -> Result<bool> {
        Ok(information(self.0.program("pass")?.as_fd())?.jited_prog_len > 0)
    }

    /// Briefly attaches a program that passes everything, to find out how XDP would be attached to `interface`. Returns
    /// the mode and, if the driver supports XDP but the kernel falls back to generic mode, the driver's reason.
    ///
    /// # Errors
    ///
    /// Fails if the interface has another XDP program, or if no XDP program can be attached to it.
    pub fn xdp(&self, interface: &Interface) -> Result<(Mode, Option<Error>)> {
        let program = self.0.program("pass")?;
        let (_link, refusal) = Link::attach_xdp(program.as_fd(), interface)?;
        Ok((hook::mode(interface)?, refusal))
    }

    /// Attaches an XDP program that passes everything. If `drop_syns`, the program drops IPv4 TCP SYNs to port 9.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program.
    pub fn attach_xdp(&self, interface: &Interface, drop_syns: bool) -> Result<Attached> {
        self.attach(interface, if drop_syns { "drop_syns" } else { "pass" }).map(Attached)
    }

    /// Attaches an XDP program that drops everything. For benches.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program.
    #[doc(hidden)]
    pub fn attach_sink(&self, interface: &Interface) -> Result<Attached> {
        self.attach(interface, "drop_all").map(Attached)
    }

    fn attach(&self, interface: &Interface, program: &str) -> Result<Link> {
        let program = self.0.program(program)?;
        Link::attach(program.as_fd(), interface.index, AttachPoint::Xdp, 0)
            .with_context(|| format!("cannot attach an XDP program to interface {}", interface.name))
    }

    /// Returns the tc mechanism by which the agent can attach its programs to `interface`. To find out, briefly
    /// attaches a program through TCX.
    ///
    /// # Errors
    ///
    /// Fails if the object file does not contain the program. It is no error if the kernel does not attach the program
    /// through TCX.
    pub fn tc(&self, interface: &Interface) -> Result<Attachment> {
        let program = self.0.program("next")?;
        Ok(match Link::attach(program.as_fd(), interface.index, AttachPoint::TcxEgress, 0) {
            Ok(_) => Attachment::Tcx,
            Err(_) => Attachment::Clsact,
        })
    }

    /// Runs the empty XDP program on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_xdp(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("pass")?, frame, repeat)
    }

    /// Runs the empty tc program on one frame.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_tc(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("next")?, frame, repeat)
    }
}
