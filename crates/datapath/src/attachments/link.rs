//! BPF links, by which programs are attached to interfaces at XDP and TCX. Links can outlive the process that made
//! them.

use crate::interface::Interface;
use anyhow::{Context, Error, Result};
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Attachment points of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachPoint {
    Xdp,
    TcxIngress,
    TcxEgress,
}

/// A program's attachment to an interface. It lasts until this value is dropped and no pin of the link is left.
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, point: AttachPoint, flags: u32) -> Result<Self> {
        let kind = match point {
            AttachPoint::Xdp => libbpf_sys::BPF_XDP,
            AttachPoint::TcxIngress => libbpf_sys::BPF_TCX_INGRESS,
            AttachPoint::TcxEgress => libbpf_sys::BPF_TCX_EGRESS,
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
        own(fd).map(Self).with_context(|| format!("cannot attach to interface number {interface} at {point:?}"))
    }

    /// Attaches at XDP: in the driver if possible, otherwise in generic mode. Returns the link and, if the kernel fell
    /// back to generic mode although the driver supports XDP, the driver's reason.
    ///
    /// # Errors
    ///
    /// Fails if the interface has another XDP program, or accepts none.
    pub(crate) fn attach_xdp(program: BorrowedFd<'_>, interface: &Interface) -> Result<(Self, Option<Error>)> {
        let attach = |flags| Self::attach(program, interface.index, AttachPoint::Xdp, flags);
        // Without flags the kernel uses the driver's XDP if there is one, otherwise generic XDP. A driver may still
        // refuse (MTU, queues).
        match attach(0) {
            Ok(link) => Ok((link, None)),
            Err(refusal) => match attach(libbpf_sys::XDP_FLAGS_SKB_MODE) {
                Ok(link) => Ok((link, Some(refusal))),
                Err(_) => Err(refusal),
            },
        }
    }

    /// Opens the link pinned at `path`, if it exists and is still on this interface.
    pub(crate) fn open(path: &Path, interface: u32) -> Option<Self> {
        let link = Self::open_any(path)?;
        let on = match LinkInfo::from_fd(link.0.as_fd()).ok()?.info {
            LinkTypeInfo::Xdp(info) => info.ifindex,
            LinkTypeInfo::Tcx(info) => info.ifindex,
            _ => return None,
        };
        (on == interface).then_some(link)
    }

    /// Reports whether the opened object is an attachment to an interface, and not another kind of pinned object.
    pub(crate) fn is_link(&self) -> bool {
        let info = LinkInfo::from_fd(self.0.as_fd()).map(|info| info.info);
        matches!(info, Ok(LinkTypeInfo::Xdp(_) | LinkTypeInfo::Tcx(_)))
    }

    /// Reports whether the interface no longer exists. The kernel then keeps the link without an interface.
    pub(crate) fn is_gone(&self) -> bool {
        match LinkInfo::from_fd(self.0.as_fd()).map(|info| info.info) {
            Ok(LinkTypeInfo::Xdp(info)) => info.ifindex == 0,
            Ok(LinkTypeInfo::Tcx(info)) => info.ifindex == 0,
            _ => true,
        }
    }

    /// Reports whether this is an attachment at XDP.
    pub(crate) fn is_xdp(&self) -> bool {
        matches!(LinkInfo::from_fd(self.0.as_fd()), Ok(LinkInfo { info: LinkTypeInfo::Xdp(_), .. }))
    }

    /// Opens the link pinned at `path`, if it exists.
    pub(crate) fn open_any(path: &Path) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: `name` is a C string that lives through the call.
        own(unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) }).ok().map(Self)
    }

    /// Replaces the attached program in place, so that no packet passes unchecked.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: both descriptors are open for the call; no options are passed.
        let result = unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
        anyhow::ensure!(result == 0, "cannot replace the attached program: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Detaches from the interface at once. If the link were only closed or unpinned, the kernel would detach it later.
    pub(crate) fn detach(&self) {
        // SAFETY: the descriptor is open for the call. The call fails if the interface is gone, which is fine.
        unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
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

/// Pins a link, a program or a map.
pub(crate) fn pin(what: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())
        .with_context(|| format!("cannot pin {}: the path contains a zero byte", path.display()))?;
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
    // SAFETY: libbpf has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
