//! The settings of the verifier's program.

use super::tells_flows;
use crate::carrier::Carrier;
use crate::mac::Suite;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The verifier program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerifierConfig {
    /// Chance that picks a token's bucket.
    pub replay_seed: u64,
    /// Buckets of the replay table less one; their number is a power of two.
    pub replay_mask: u32,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest a grant may still live, seconds.
    pub max_lifetime: u32,
    /// How many flows one grant may have.
    pub flows_per_grant: u32,
    /// Seconds after which a silent TCP flow is forgotten.
    pub tcp_idle: u32,
    /// The same for all other flows.
    pub udp_idle: u32,
    /// The same for a TCP flow whose client sent FIN or RST last.
    pub closing_idle: u32,
    /// Drop samples per core and second.
    pub samples_per_second: u32,
    /// 1: count and report, but drop nothing.
    pub observe: u32,
    /// The carriers that it takes tokens from: the bits of each [`Carrier`].
    pub carriers: u16,
    /// The suites that it takes tokens of: each one's bit is at its number.
    pub suites: u16,
    /// How many flows the inside of a gateway may have opened; 0 if this is none.
    pub max_outbound: u32,
    /// When it tells of flows, for the gateways beside this one: one of [`tells_flows`].
    pub tells_flows: u32,
    /// What of a packet's mark says that it is admitted.
    pub mark: u32,
    /// Which bits of the mark are the verifier's, the lowest eight for the class; 0 if its verdict is to drop.
    pub mark_mask: u32,
    /// Seconds after which a UDP flow that a client opened needs another token.
    pub udp_renewal: u32,
    /// How many flows the grants of one account may have together.
    pub flows_per_account: u32,
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
            carriers: Carrier::Tail as u16,
            suites: 1 << Suite::AesCmac as u16 | 1 << Suite::Siphash as u16,
            max_outbound: 0,
            tells_flows: tells_flows::NOTHING,
            mark: 0,
            mark_mask: 0,
            udp_renewal: 60,
            flows_per_account: 4096,
        }
    }
}

impl VerifierConfig {
    /// Whether tokens come by this carrier.
    pub const fn takes(&self, carrier: Carrier) -> bool {
        self.carriers & carrier as u16 != 0
    }

    /// Whether it speaks the suite with this number.
    pub const fn speaks(&self, suite: u8) -> bool {
        suite < 16 && self.suites >> suite & 1 == 1
    }
}
