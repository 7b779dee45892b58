//! The AEADs of records, by number (wire.md §9.3.3), and the choice between them (§9.5.4).

/// An AEAD of sealed tunnels. The MAC suites of grants are [`crate::Suite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Suite {
    /// AEAD_AES_128_GCM, RFC 5116.
    Aes128Gcm = 1,
    /// AEAD_AES_256_GCM, RFC 5116.
    Aes256Gcm = 2,
    /// AEAD_CHACHA20_POLY1305, RFC 8439.
    ChaCha20Poly1305 = 3,
}

impl Suite {
    /// All suites, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the suite with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Aes128Gcm),
            2 => Some(Self::Aes256Gcm),
            3 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Returns the name used in policies, metrics and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Returns the length of the suite's key in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// A set of suites, encoded as on the wire: bit n−1 stands for suite n. Bits of unknown suites are kept, but have no
/// effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Suites(pub u8);

impl Suites {
    /// Every known suite.
    pub const ALL: Self = Self(0b111);

    /// Reports whether the suite is in the set.
    pub const fn has(self, suite: Suite) -> bool {
        self.0 >> (suite as u8 - 1) & 1 == 1
    }

    /// Returns the set with `suite` added.
    pub const fn with(self, suite: Suite) -> Self {
        Self(self.0 | 1 << (suite as u8 - 1))
    }

    /// Returns the suites that are in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the known suites of the set, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Suite> {
        Suite::ALL.into_iter().filter(move |suite| self.has(*suite))
    }

    /// Returns the suite with which a sender seals (wire.md §9.5.4). `common` are the suites that the rule allows and
    /// the receiver can open; `helped` are the suites that both ends' hardware accelerates. The result is the first
    /// suite of `common` that is in `helped`. If there is none, the result is `chacha20-poly1305` if `common` has it,
    /// or else the first suite of `common`. Returns `None` if `common` has no known suite.
    pub fn choose(common: Self, helped: Self) -> Option<Suite> {
        let fast = common.and(helped).iter().next();
        let even = common.has(Suite::ChaCha20Poly1305).then_some(Suite::ChaCha20Poly1305);
        fast.or(even).or_else(|| common.iter().next())
    }
}

#[cfg(test)]
mod tests {
    use super::{Suite, Suites};

    #[test]
    fn hardware_of_both_ends_decides_and_without_it_chacha() {
        let [a128, a256, chacha] = Suite::ALL.map(|suite| Suites::default().with(suite));
        let aes = Suites(a128.0 | a256.0);
        assert_eq!(Suites::choose(Suites::ALL, aes), Some(Suite::Aes128Gcm));
        assert_eq!(Suites::choose(Suites::ALL, a256), Some(Suite::Aes256Gcm));
        assert_eq!(Suites::choose(Suites::ALL, Suites(0)), Some(Suite::ChaCha20Poly1305));
        assert_eq!(Suites::choose(a256, a128), Some(Suite::Aes256Gcm), "what the rule allows comes first");
        assert_eq!(Suites::choose(chacha, aes), Some(Suite::ChaCha20Poly1305));
        assert_eq!(Suites::choose(aes, Suites(0)), Some(Suite::Aes128Gcm));
        assert_eq!(Suites::choose(Suites(0xf8), Suites(0xff)), None, "suites that are not there yet");
    }

    #[test]
    fn numbers_are_dense_and_round_trip() {
        for (index, suite) in Suite::ALL.into_iter().enumerate() {
            assert_eq!(suite as usize, index + 1);
            assert_eq!(Suite::from_number(suite as u8), Some(suite));
            assert!(Suites::ALL.has(suite));
        }
        assert_eq!(Suite::from_number(0), None);
        assert_eq!(Suite::from_number(4), None);
        assert_eq!(Suites::ALL.iter().count(), Suite::ALL.len());
    }
}
