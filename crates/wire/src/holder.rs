//! Grant holders. The handle of each grant contains the number of the grant's holder. Only the grant's verifier can
//! read this number. Nobody on the path can read it (wire.md §3.9).

use crate::grant::Handle;
use crate::key::VerifierKey;
use crate::ls::Pair;
use crate::mac::Suite;

const LABEL: &[u8; 4] = b"hold";

/// A number that identifies an account and one of its sessions. By this number, verifiers count the flows, grants and
/// tokens of each account. To end a session, the authority announces this number to the verifiers, which then end all
/// grants and flows of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u32);

impl Holder {
    /// The largest account number. An authority never assigns the same number to two accounts.
    pub const ACCOUNT_MAX: u32 = (1 << 24) - 1;

    /// Returns the holder for this session of this account, or `None` if the account number exceeds
    /// [`Self::ACCOUNT_MAX`].
    pub const fn new(account: u32, session: u8) -> Option<Self> {
        if account > Self::ACCOUNT_MAX { None } else { Some(Self(account << 8 | session as u32)) }
    }

    /// Returns the number of the account. The account belongs to a person or to a service.
    pub const fn account(self) -> u32 {
        self.0 >> 8
    }

    /// Returns the session's number within the account. When no grant of this session is left, the authority can assign
    /// the number to another session.
    pub const fn session(self) -> u8 {
        self.0 as u8
    }

    /// Makes a handle for a grant of this holder from the random bits `chance`. Only a pair's handle begins with a zero
    /// byte (wire.md §5.7): if the handle made from `chance` begins with a zero byte, tries `chance` + 1, and so on.
    pub fn handle(self, key: &VerifierKey, mut chance: u32) -> Handle {
        loop {
            let handle = Handle(u64::from(self.0 ^ mask(key, chance)) << 32 | u64::from(chance));
            if Pair::of(handle).is_none() {
                return handle;
            }
            chance = chance.wrapping_add(1);
        }
    }

    /// Returns the holder that a grant's handle contains; `key` must be the verifier key of the grant's epoch. The
    /// result is meaningful only if the grant's tag is right. A pair's handle contains no holder.
    pub fn of(handle: Handle, key: &VerifierKey) -> Self {
        Self((handle.0 >> 32) as u32 ^ mask(key, handle.0 as u32))
    }
}

fn mask(key: &VerifierKey, chance: u32) -> u32 {
    let [a, b, c, d, ..] = Suite::Siphash.mac(key.of(Suite::Siphash), &[LABEL, &chance.to_be_bytes()]);
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_reads_the_holder_and_another_key_does_not() {
        let (key, other) = (VerifierKey::new([7; 32]), VerifierKey::new([8; 32]));
        let holder = Holder::new(0x0012_3456, 9).expect("small");
        for chance in (0..2000).chain(u32::MAX - 10..=u32::MAX) {
            let handle = holder.handle(&key, chance);
            assert!(Pair::of(handle).is_none(), "a pair's handle: {handle}");
            assert_eq!(Holder::of(handle, &key), holder);
            assert_ne!(Holder::of(handle, &other), holder);
        }
        assert_eq!((holder.account(), holder.session()), (0x0012_3456, 9));
        assert_eq!(Holder::new(Holder::ACCOUNT_MAX + 1, 0), None);
    }

    #[test]
    fn handles_of_one_holder_show_nothing_in_common() {
        let key = VerifierKey::new([7; 32]);
        let holder = Holder::new(1, 1).expect("small");
        let first = holder.handle(&key, 0).0 >> 32;
        assert!((1..1000).all(|chance| holder.handle(&key, chance).0 >> 32 != first));
    }
}
