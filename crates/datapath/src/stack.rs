//! Offsets of two sequence numbers in the kernel's TCP structures, from the kernel's type information (BTF). With these
//! offsets, the programs read the sequence numbers from the kernel's sockets (`bpf/include/stack.h`).

use libbpf_rs::Btf;
use libbpf_rs::btf::types::{MemberAttr, Struct};
use std::ffi::OsStr;
use std::sync::OnceLock;
use wire::map::StackLayout;

/// Returns the offsets of the sequence numbers in the kernel's TCP structures. Only the first call reads the kernel's
/// type information (BTF). The offsets are zero if the kernel has no type information, or if it lacks a field.
pub fn layout() -> StackLayout {
    static LAYOUT: OnceLock<StackLayout> = OnceLock::new();
    *LAYOUT.get_or_init(|| {
        let layout = Btf::from_vmlinux().ok().and_then(|btf| read(&btf));
        if layout.is_none() {
            tracing::info!(
                "the kernel has no type information (BTF), so the verifier can't look up connections in the kernel's \
                 sockets"
            );
        }
        layout.unwrap_or_default()
    })
}

fn read(btf: &Btf<'_>) -> Option<StackLayout> {
    Some(StackLayout {
        rcv_nxt: offset(btf, "tcp_sock", "rcv_nxt")?,
        snt_isn: offset(btf, "tcp_request_sock", "snt_isn")?,
    })
}

/// Returns the offset of a structure's member, in bytes.
fn offset(btf: &Btf<'_>, structure: &str, member: &str) -> Option<u32> {
    let structure: Struct<'_> = btf.type_by_name(structure)?;
    let found = structure.iter().find(|found| found.name == Some(OsStr::new(member)))?;
    match found.attr {
        MemberAttr::Normal { offset } => Some(offset / 8),
        MemberAttr::BitField { .. } => None,
    }
}
