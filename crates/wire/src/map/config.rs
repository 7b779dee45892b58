//! The settings of the verifier's program.

use super::advertises_flows;
use crate::carrier::Carrier;
use crate::mac::Suite;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The verifier program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerifierConfig {
    /// Random seed of the hash that selects a token's bucket.
    pub replay_seed: u64,
    /// Number of buckets of the replay table, a power of two, less one.
    pub replay_mask: u32,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest remaining lifetime that a grant may have, seconds.
    pub max_lifetime: u32,
    /// Maximum number of flows of one grant.
    pub flows_per_grant: u32,
    /// Seconds after which a silent TCP flow is forgotten.
    pub tcp_idle: u32,
    /// Seconds after which any other silent flow is forgotten.
    pub udp_idle: u32,
    /// Seconds after which a silent TCP flow is forgotten if its client sent FIN or RST last.
    pub closing_idle: u32,
    /// Drop samples per core and second.
    pub samples_per_second: u32,
    /// 1 if the program counts and reports, but drops nothing.
    pub observe: u32,
    /// The accepted carriers: the bits of each [`Carrier`].
    pub carriers: u16,
    /// The accepted suites of tokens: bit n for suite number n.
    pub suites: u16,
    /// Maximum number of flows that the inside of a gateway may have open; 0 if the verifier is not a gateway.
    pub max_outbound: u32,
    /// When the program reports flows, for the peer gateways: one of [`advertises_flows`].
    pub advertises_flows: u32,
    /// Value of the mark's bits in `mark_mask` that means an admitted packet.
    pub mark: u32,
    /// Bits of the mark that the verifier uses, the lowest eight of them for the class; 0 if the verifier drops packets
    /// itself.
    pub mark_mask: u32,
    /// Seconds after which a UDP flow that a client opened needs another token.
    pub udp_renewal: u32,
    /// Maximum number of flows of all grants of one account together.
    pub flows_per_account: u32,
    /// Maximum number of grants in use of one account.
    pub grants_per_account: u32,
    /// Zero.
    pub reserved: u32,
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self {
            replay_seed: 0,
            replay_mask: 65535,
            epoch_length: 3600,
            max_lifetime: 3600,
            flows_per_grant: 1024,
            tcp_idle: 86400,
            udp_idle: 60,
            closing_idle: 30,
            samples_per_second: 100,
            observe: 0,
            carriers: Carrier::Tail as u16 | Carrier::Stream as u16,
            suites: 1 << Suite::AesCmac as u16 | 1 << Suite::Siphash as u16,
            max_outbound: 0,
            advertises_flows: advertises_flows::NOTHING,
            mark: 0,
            mark_mask: 0,
            udp_renewal: 60,
            flows_per_account: 4096,
            grants_per_account: 1024,
            reserved: 0,
        }
    }
}

impl VerifierConfig {
    /// Reports whether the verifier accepts tokens by this carrier.
    pub const fn takes(&self, carrier: Carrier) -> bool {
        self.carriers & carrier as u16 != 0
    }

    /// Reports whether the verifier accepts the suite with this number.
    pub const fn speaks(&self, suite: u8) -> bool {
        suite < 16 && self.suites >> suite & 1 == 1
    }
}
