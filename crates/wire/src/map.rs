//! Layouts of the kernel maps, byte for byte as in `bpf/include/layout.h`. The crate `datapath` checks that both agree.
//!
//! Integers are in host byte order unless their type says otherwise, because only programs on this machine read the
//! maps.

mod agent;
mod class_set;
mod config;
mod drops;
mod flow;
mod forgotten;
mod grant;
mod inside;
mod key_transfer;
mod keys;
mod pair;
mod proofs;
mod received;
mod replay;
mod revoked;
mod service;
mod stack;
mod svtep;

pub use agent::{
    ASKS, ASKS_BY_CGROUP, AgentConfig, Conversation, DatagramFlow, FirstPacket, GrantEntry, GrantSlot, HelpingDevices,
    KEEPS_FLOWS, Ladder, Owner, QueuedHeader, Steered, Steering, agent_counter, owner,
};
pub use class_set::ClassSet;
pub use config::{VerifierConfig, chain};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use drops::{DropSample, counter};
pub use flow::{Flow, FlowKey, FlowKey4, origin, stage};
pub use forgotten::{Forgotten, Span};
pub use grant::{AccountUse, GrantClass, GrantUse, TOKEN_WINDOW, TOKENS_PER_FLOW};
pub use inside::{Bearer, LeaseKey, Member, NatConfig, NatNews, PersonName, PoolSlot, WayBack, nat_news};
pub use key_transfer::{AuthorityEnd, TakenKey, Transfer, TransferConfig, transfer_counter};
pub use keys::{EpochKey, SecretEntry};
pub use pair::LsGrant;
pub use proofs::{ProofKeySlot, ProofsConfig, WithdrawalKey};
pub use received::{FlowNews, ReceivedAddress, ReceivedFlow, advertises_flows, taken};
pub use replay::{REPLAY_ENTRIES, ReplayBucket, ReplayLook};
pub use revoked::{CLASSES_OF_ACCOUNTS, RevokedKey};
pub use service::{OptionalService, Prefix4, Prefix6, SERVICES_MAX, Service, Services};
pub use stack::StackLayout;
pub use svtep::{
    Consent, Delivery, SegmentEntry, SegmentKey, SvtepConfig, Tenant, UnsentHeader, segment_state, svtep_counter,
};

/// Returns an address in the form that the maps use: IPv4 in the first four bytes, the rest zero.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&a.octets());
            bytes
        }
        IpAddr::V6(a) => a.octets(),
    }
}

/// Returns the address in the 16 bytes of a map's entry; `family` is 4 or 6.
pub fn address_of(bytes: [u8; 16], family: u8) -> IpAddr {
    match bytes {
        [a, b, c, d, ..] if family == 4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}
