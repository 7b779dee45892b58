//! Offsets in structures of the kernel. The verifier's programs use them to read the kernel's sockets
//! (`bpf/include/stack.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offsets in structures of the kernel, in bytes; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StackLayout {
    /// Offset of the next sequence number that a socket expects, in `struct tcp_sock`.
    pub rcv_nxt: u32,
    /// Offset of the socket's own initial sequence number, in `struct tcp_request_sock`.
    pub snt_isn: u32,
}
