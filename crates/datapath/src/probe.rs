//! Programs that do nothing: they find out what this kernel and its interfaces can do, and are the benches' baseline.

use crate::hook::{self, Mode};
use crate::interface::Interface;
use crate::link::{Link, Place};
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

/// The XDP program that is on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Its number.
    pub id: u32,
    /// Its name, as far as the kernel keeps it: 15 bytes.
    pub name: String,
    /// How it is attached; none if there are several.
    pub mode: Option<Mode>,
}

/// The XDP program on `interface`, whoever attached it.
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
    anyhow::ensure!(result == 0, "cannot ask about a program: {}", std::io::Error::last_os_error());
    Ok(info)
}

/// Whether the driver of `interface` says that it has XDP; none before Linux 6.3, where drivers don't say.
pub fn driver_has_xdp(interface: &Interface) -> Option<bool> {
    /// NETDEV_XDP_ACT_BASIC of linux/netdev.h.
    const BASIC: u64 = 1;
    let said = hook::query(interface).ok()?;
    (kernel_version() >= (6, 3)).then_some(said.feature_flags & BASIC != 0)
}

/// Something attached for as long as this lives.
#[must_use = "dropping it detaches at once"]
pub struct Attached(#[allow(dead_code, reason = "held for its drop")] Link);

impl Probe {
    /// Loads the programs: the first thing that fails where BPF is missing.
    pub fn load() -> Result<Self> {
        object::log_through_tracing();
        Opened::new("probe", OBJECT)?.load("probe").map(Self)
    }

    /// Whether the kernel compiles programs, or interprets them.
    pub fn is_compiled(&self) -> Result<bool> {
        Ok(information(self.0.program("pass")?.as_fd())?.jited_prog_len > 0)
    }

    /// How XDP would be attached to `interface`: attaches a program that passes everything, for a moment. Beside the mode
    /// stands why the driver refused, where it has XDP and the kernel's own is used all the same.
    ///
    /// # Errors
    /// If another XDP program is there, or the interface takes none.
    pub fn xdp(&self, interface: &Interface) -> Result<(Mode, Option<Error>)> {
        let program = self.0.program("pass")?;
        let attach = |flags| Link::attach(program.as_fd(), interface.index, Place::Xdp, flags);
        // As the verifier does it.
        let (_link, refusal) = match attach(0) {
            Ok(link) => (link, None),
            Err(error) => match attach(libbpf_sys::XDP_FLAGS_SKB_MODE) {
                Ok(link) => (link, Some(error)),
                Err(_) => return Err(error),
            },
        };
        Ok((hook::mode(interface)?, refusal))
    }

    /// Attaches the XDP program that passes everything, or everything but TCP SYNs over IPv4 to port 9.
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
        Link::attach(program.as_fd(), interface.index, Place::Xdp, 0)
            .with_context(|| format!("interface {} takes no XDP program", interface.name))
    }

    /// Which hook this kernel has for the agent: tries TCX on `interface`, for a moment.
    pub fn tc(&self, interface: &Interface) -> Result<Attachment> {
        let program = self.0.program("next")?;
        Ok(match Link::attach(program.as_fd(), interface.index, Place::TcxEgress, 0) {
            Ok(_) => Attachment::Tcx,
            Err(_) => Attachment::Clsact,
        })
    }

    /// What the empty XDP program does with one frame.
    pub fn run_xdp(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("pass")?, frame, repeat)
    }

    /// What the empty tc program does with one frame.
    pub fn run_tc(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.0.runnable("next")?, frame, repeat)
    }
}
