//! Where the kernel keeps what the verifier's programs ask its sockets for (`bpf/include/stack.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offsets in bytes; 0 if nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StackLayout {
    /// The next sequence number that a socket expects, in `struct tcp_sock`.
    pub rcv_nxt: u32,
    /// The first number of its own, in `struct tcp_request_sock`.
    pub snt_isn: u32,
}
