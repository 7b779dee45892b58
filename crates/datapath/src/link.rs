//! Attachments of programs to interfaces that outlive the process: BPF links for XDP and TCX.

use anyhow::{Context, Result};
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where a program hooks in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Xdp,
    TcxIngress,
    TcxEgress,
}

/// A program attached to an interface, for as long as this, or a pin of it, lives.
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, place: Place, flags: u32) -> Result<Self> {
        let kind = match place {
            Place::Xdp => libbpf_sys::BPF_XDP,
            Place::TcxIngress => libbpf_sys::BPF_TCX_INGRESS,
            Place::TcxEgress => libbpf_sys::BPF_TCX_EGRESS,
        };
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            flags,
            ..Default::default()
        };
        // SAFETY: the program's descriptor is open for the call, and the options live through it.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(program.as_raw_fd(), interface as i32, kind, std::ptr::from_ref(&options))
        };
        own(fd).map(Self).with_context(|| format!("cannot attach at {place:?}"))
    }

    /// The link pinned at `path`, if it is there and still on this interface.
    pub(crate) fn open(path: &Path, interface: u32) -> Option<Self> {
        let link = Self::open_any(path)?;
        let on = match LinkInfo::from_fd(link.0.as_fd()).ok()?.info {
            LinkTypeInfo::Xdp(info) => info.ifindex,
            LinkTypeInfo::Tcx(info) => info.ifindex,
            _ => return None,
        };
        (on == interface).then_some(link)
    }

    /// Whether this is an attachment to an interface, and not something else that was pinned.
    pub(crate) fn is_link(&self) -> bool {
        let info = LinkInfo::from_fd(self.0.as_fd()).map(|info| info.info);
        matches!(info, Ok(LinkTypeInfo::Xdp(_) | LinkTypeInfo::Tcx(_)))
    }

    /// Whether the interface is gone: the kernel then keeps the link, on nothing.
    pub(crate) fn is_gone(&self) -> bool {
        match LinkInfo::from_fd(self.0.as_fd()).map(|info| info.info) {
            Ok(LinkTypeInfo::Xdp(info)) => info.ifindex == 0,
            Ok(LinkTypeInfo::Tcx(info)) => info.ifindex == 0,
            _ => true,
        }
    }

    /// Whether this is an attachment at XDP.
    pub(crate) fn is_xdp(&self) -> bool {
        matches!(LinkInfo::from_fd(self.0.as_fd()), Ok(LinkInfo { info: LinkTypeInfo::Xdp(_), .. }))
    }

    /// The link pinned at `path`, if it is there.
    pub(crate) fn open_any(path: &Path) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: `name` is a C string that lives through the call.
        own(unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) }).ok().map(Self)
    }

    /// Puts another program in the place of the attached one, without a packet between them.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: both descriptors are open for the call; no options are passed.
        let result = unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
        anyhow::ensure!(result == 0, "cannot replace the attached program: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Lets go of the interface at once. Closing and unpinning do so only after the kernel's workers came round to it.
    pub(crate) fn detach(&self) {
        // SAFETY: the descriptor is open for the call. A link whose interface is gone fails, which is what was wanted.
        unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
    }

    pub(crate) fn pin(&self, path: &Path) -> Result<()> {
        pin(self.0.as_fd(), path)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> Self {
        link.0
    }
}

/// Pins a link or a program.
pub(crate) fn pin(what: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes()).context("path with a zero byte")?;
    // SAFETY: the descriptor is open and `name` is a C string that lives through the call.
    let result = unsafe { libbpf_sys::bpf_obj_pin(what.as_raw_fd(), name.as_ptr()) };
    let error = std::io::Error::last_os_error();
    anyhow::ensure!(result == 0, "cannot pin {}: {error}", path.display());
    Ok(())
}

fn own(fd: i32) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: libbpf has just returned this descriptor and nobody else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
