//! Drop reasons of a verifier: one numbered, append-only list (wire.md §6.7).
//!
//! `bpf/include/drop_reason.h` has the same numbers; a test in `datapath` compares them. [`DropReason::name`] is the
//! word in metrics and lists. The code that makes a check also gives the sentence that explains why a packet was
//! dropped (`require` in `engine/src/verifier/token.rs` and `decide.rs`), and `explain.rs` collects these sentences.
//! docs/operations.md says what an operator can do about each reason.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// Reason for dropping a packet. The numbers are those of wire.md §6.7 and never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $variant = $number,)* }

        impl DropReason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name used in metrics, logs and documents.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the reason with this number, if there is one.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

drop_reasons! {
    /// The packet is a first packet to a protected destination, without a token.
    NoToken = 1, "no_token";
    /// The token or the packet violates its format.
    Malformed = 2, "malformed";
    /// The verifier does not accept the token's suite.
    UnknownSuite = 3, "unknown_suite";
    /// The verifier has no key for the epoch, or the epoch is not the previous, the current or the next one.
    UnknownEpoch = 4, "unknown_epoch";
    /// The grant has ended.
    Expired = 5, "expired";
    /// The grant's remaining lifetime is longer than the verifier allows.
    LifetimeTooLong = 6, "lifetime_too_long";
    /// The sender's clock differs from the verifier's by more than 30 s.
    ClockSkew = 7, "clock_skew";
    /// The tag is not the tag that the grant's key yields.
    BadTag = 8, "bad_tag";
    /// The grant was revoked.
    Revoked = 9, "revoked";
    /// The token was used before.
    Replayed = 10, "replayed";
    /// The grant or its account has the maximum number of flows, or a table is full.
    FlowLimit = 11, "flow_limit";
    /// The packet is a fragment that belongs to no admitted flow, or TCP with a fragment header.
    Fragment = 12, "fragment";
    /// The packet is not a first packet, and its flow is not admitted.
    NoFlow = 13, "no_flow";
    /// The gateway has no inside address for the flow: either no address is free, or the gateway does not yet know to
    /// whom the grant was issued.
    NoAddress = 14, "no_address";
    /// The grant admits packets only inside a sealed tunnel, but the packet arrived outside of one.
    Unsealed = 15, "unsealed";
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::DropReason;

    #[test]
    fn numbers_are_dense_and_round_trip() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index + 1);
            assert_eq!(DropReason::from_number(*reason as u8), Some(*reason));
        }
        assert_eq!(DropReason::from_number(0), None);
        assert_eq!(DropReason::from_number(DropReason::ALL.len() as u8 + 1), None);
    }
}
