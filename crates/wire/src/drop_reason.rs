//! Drop reasons of a verifier: one numbered, append-only list (wire.md §6.7).
//!
//! `bpf/include/drop_reason.h` has the same numbers; a test in `datapath` compares them.

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
    /// A first packet to a protected destination without a token.
    NoToken = 1, "no_token";
    /// A token or packet that breaks the format.
    Malformed = 2, "malformed";
    /// A suite that this verifier does not accept.
    UnknownSuite = 3, "unknown_suite";
    /// An epoch that is neither the previous, the current nor the next, or whose key is missing.
    UnknownEpoch = 4, "unknown_epoch";
    /// The grant has ended.
    Expired = 5, "expired";
    /// The grant would live longer than this verifier allows.
    LifetimeTooLong = 6, "lifetime_too_long";
    /// The sender's clock is more than 30 s away.
    ClockSkew = 7, "clock_skew";
    /// The tag is not the one that the grant's key yields.
    BadTag = 8, "bad_tag";
    /// The grant was revoked.
    Revoked = 9, "revoked";
    /// The token was used before.
    Replayed = 10, "replayed";
    /// The grant has as many flows as it may, or a table is full.
    FlowLimit = 11, "flow_limit";
    /// A fragment that belongs to no admitted flow.
    Fragment = 12, "fragment";
    /// A mid-flow packet of an unknown flow.
    NoFlow = 13, "no_flow";
    /// The gateway has no inside address for the flow: none is free, or the gateway does not yet know whose grant it
    /// is.
    NoAddress = 14, "no_address";
    /// The grant admits inside a sealed tunnel only, and the packet arrived outside of one.
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
