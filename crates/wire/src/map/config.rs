//! The settings of the verifier's program.

use super::advertises_flows;
use crate::carrier::Carrier;
use crate::mac::Suite;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Values of [`VerifierConfig::chain`]: the place of the program in a chain. A verifier with several authorities runs a
/// chain of programs, one for each authority.
pub mod chain {
    /// The program is the first one of its chain. Its protected services include the services of the other authorities.
    pub const FIRST: u8 = 1;
    /// The program gets the packets that earlier programs of the chain have refused.
    pub const LATER: u8 = 2;
}

/// The verifier program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerifierConfig {
    /// Random seed of the hash that selects the bucket for a token in the replay table.
    pub replay_seed: u64,
    /// Number of buckets of the replay table minus one. The number of buckets is a power of two.
    pub replay_mask: u32,
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// Maximum remaining lifetime of a grant, in seconds.
    pub max_lifetime: u32,
    /// Maximum number of flows of one grant.
    pub flows_per_grant: u32,
    /// Number of seconds without a packet after which a TCP flow is forgotten.
    pub tcp_idle: u32,
    /// Number of seconds without a packet after which a flow of any other protocol is forgotten.
    pub udp_idle: u32,
    /// Number of seconds without a packet after which a TCP flow is forgotten if its client has sent FIN or RST, or has
    /// not opened the flow completely yet.
    pub closing_idle: u32,
    /// Maximum number of drop samples per second on one core.
    pub samples_per_second: u32,
    /// 1 if the program only observes: it counts and reports the packets that it refuses, but lets them pass, except
    /// packets in sealed tunnels, SYNs with a stream's block, and the datagrams of `tcp_in_udp` (wire.md §4.6.3).
    /// Otherwise 0.
    pub observe: u32,
    /// The accepted carriers: the sum of the numbers of [`Carrier`].
    pub carriers: u16,
    /// The accepted suites of tokens. Bit n is set if the suite with the number n is accepted.
    pub suites: u16,
    /// Maximum number of open flows that the inside of a gateway opened; 0 if the verifier is not a gateway.
    pub max_outbound: u32,
    /// Which flows the program reports to user space for the peer gateways, and when: one of [`advertises_flows`].
    pub advertises_flows: u32,
    /// The value that the bits of `mark_mask` have in the mark of an admitted packet of class 0.
    pub mark: u32,
    /// The bits of a packet's mark that the verifier uses. The lowest eight of these bits contain the packet's class. 0
    /// if the verifier does not mark packets, but drops packets that it does not admit.
    pub mark_mask: u32,
    /// Number of seconds after which a UDP flow that a client opened needs another token.
    pub udp_renewal: u32,
    /// Maximum number of flows of one account, under all of its grants together.
    pub flows_per_account: u32,
    /// Maximum number of grants of one account that can be in use at the same time.
    pub grants_per_account: u32,
    /// 1 if the program also accepts tokens of the LS scheme whose pairs were not announced to it; 0 if it rejects them
    /// (wire.md §6.4.7).
    pub ls_stateless: u16,
    /// 1 if there are optional receivers (wire.md §6.12), otherwise 0.
    pub optional: u8,
    /// The place of the program in the chain of a verifier with several authorities (wire.md §6.13): the sum of
    /// constants of [`super::chain`]. 0 if the verifier has one authority.
    pub chain: u8,
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
            carriers: Carrier::Tail as u16 | Carrier::Stream as u16 | Carrier::FastOpen as u16,
            suites: 1 << Suite::AesCmac as u16 | 1 << Suite::Siphash as u16,
            max_outbound: 0,
            advertises_flows: advertises_flows::NOTHING,
            mark: 0,
            mark_mask: 0,
            udp_renewal: 60,
            flows_per_account: 4096,
            grants_per_account: 1024,
            ls_stateless: 0,
            optional: 0,
            chain: 0,
        }
    }
}

impl VerifierConfig {
    /// Reports whether the verifier accepts tokens in this carrier.
    pub const fn takes(&self, carrier: Carrier) -> bool {
        self.carriers & carrier as u16 != 0
    }

    /// Reports whether the verifier accepts the suite with this number.
    pub const fn speaks(&self, suite: u8) -> bool {
        suite < 16 && self.suites >> suite & 1 == 1
    }
}
