//! The grants of one process that adds tokens to its own connections, without kernel tables. A wallet finds out whether
//! a destination is protected and which of its grants applies, and makes the tokens.

use super::grants::Grants;
use super::held_grant::{HeldGrant, Unusable};
use super::receivers::Receivers;
use super::view::GrantView;
use crate::model::{Grant, Receiver};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::{Carrier, Destination, Handle, Token};

/// Seconds after a denial in which the caller does not ask the authority again.
const DENIAL: u64 = 10;
/// Maximum number of destinations whose denial is remembered.
const DENIALS_MAX: usize = 1024;

/// Whether a first packet to a destination needs a token, and whether the wallet has a grant to make the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// None of the person's receivers contains the destination, so packets to it must carry no token.
    NotProtected,
    /// A grant for the destination is ready for use.
    Granted,
    /// The policy denied the request within the last seconds. The text is the reason.
    Denied(String),
    /// The caller has to request a grant from the authority.
    Missing,
}

/// The receivers that a session's person is allowed to reach, and the session's grants.
pub struct Wallet {
    receivers: Receivers,
    grants: Grants,
    denied: BTreeMap<Destination, (u64, String)>,
}

impl Wallet {
    /// Creates a wallet without grants.
    pub fn new(receivers: Vec<Receiver>) -> Self {
        Self { receivers: known(receivers), grants: Grants::default(), denied: BTreeMap::new() }
    }

    /// Takes the authority's list of the receivers that the person is allowed to reach, and forgets all denials.
    pub fn set_receivers(&mut self, receivers: Vec<Receiver>) {
        self.denied.clear();
        if self.receivers.all() != receivers {
            self.receivers = known(receivers);
        }
    }

    /// Returns the receivers in the order in which the authority listed them.
    pub fn receivers(&self) -> &[Receiver] {
        self.receivers.all()
    }

    /// Returns the receiver of a destination, if the destination is protected.
    pub fn receiver(&self, to: &Destination) -> Option<&Receiver> {
        self.receivers.of(to)
    }

    /// Returns whether a first packet to this destination needs a token, and whether there is a grant for it.
    pub fn standing(&self, to: &Destination, unix: u64) -> Standing {
        if self.receiver(to).is_none() {
            return Standing::NotProtected;
        }
        if self.grants.best(unix, to, None).is_some() {
            return Standing::Granted;
        }
        match self.denied.get(to) {
            Some((until, why)) if *until > unix => Standing::Denied(why.clone()),
            _ => Standing::Missing,
        }
    }

    /// Takes the grant that the authority issued for `to`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the wallet can't use the grant.
    pub fn add(&mut self, answer: &Grant, to: &Destination, unix: u64, now: Duration) -> Result<Handle, Unusable> {
        if answer.admits_in_tunnel_only() {
            return Err(Unusable::Sealed);
        }
        let held = HeldGrant::from_answer(answer, to, unix, now)?;
        if held.carrier == Carrier::Shim {
            return Err(Unusable::Malformed("the grant's tokens travel by the carrier shim, which needs the agent"));
        }
        self.denied.remove(to);
        let handle = held.handle();
        self.grants.remove(handle);
        if let Some(first) = self.grants.insert(held) {
            self.grants.remove(first);
        }
        Ok(handle)
    }

    /// Records that the policy denies a grant for `to`, for the reason `why`. [`Self::standing`] reports the denial for
    /// at most ten seconds.
    pub fn deny(&mut self, to: Destination, unix: u64, why: String) {
        if self.denied.len() >= DENIALS_MAX {
            self.denied.retain(|_, (until, _)| *until > unix);
        }
        if self.denied.len() < DENIALS_MAX {
            self.denied.insert(to, (unix + DENIAL, super::held_grant::shortened(&why)));
        }
    }

    /// Makes the token for one first packet to `to`. Returns `None` if the destination is not protected or has no
    /// usable grant. A grant for a single flow yields only one token. The caller must not pass the same `nonce` twice
    /// within a second.
    pub fn token(&mut self, to: &Destination, unix: u64, nonce: u32) -> Option<Token> {
        self.receiver(to)?;
        let handle = self.grants.best(unix, to, None)?;
        let held = self.grants.get_mut(handle)?;
        let time = u32::try_from(unix).ok()?;
        held.used = time;
        let token = held.token(to, time, nonce)?;
        if held.is_single() {
            self.grants.remove(handle);
        }
        Some(token)
    }

    /// Reports whether it is time to request a new grant for `to` in place of the one that the wallet has.
    pub fn is_due(&self, to: &Destination, unix: u64, now: Duration) -> bool {
        let best = self.grants.best(unix, to, None).and_then(|handle| self.grants.get(handle));
        best.is_some_and(|held| held.is_due(now))
    }

    /// Removes a grant that the authority has revoked.
    pub fn revoke(&mut self, handle: Handle) {
        self.grants.remove(handle);
    }

    /// Removes the grants for a destination. The caller uses this method if packets with tokens of these grants get no
    /// answer.
    pub fn forget(&mut self, to: &Destination, unix: u64) {
        while let Some(handle) = self.grants.best(unix, to, None) {
            self.grants.remove(handle);
        }
    }

    /// Removes all grants, and forgets all denials.
    pub fn clear(&mut self) {
        self.grants = Grants::default();
        self.denied.clear();
    }

    /// Returns all grants in the form that is shown to users.
    pub fn views(&self) -> Vec<GrantView> {
        self.grants.iter().map(GrantView::of).collect()
    }

    /// Returns the grant from which the next token to `to` would be made, in the form that is shown to users.
    pub fn view(&self, to: &Destination, unix: u64) -> Option<GrantView> {
        self.grants.best(unix, to, None).and_then(|handle| self.grants.get(handle)).map(GrantView::of)
    }
}

/// Returns the receivers without their rules' demands for a sealed tunnel. These demands are not needed here: no packet
/// goes to a receiver without a token, and [`Wallet::add`] refuses grants that admit in a tunnel only.
fn known(receivers: Vec<Receiver>) -> Receivers {
    Receivers::new(receivers, BTreeSet::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Sealing, Secret, Service};
    use wire::packet::TCP;
    use wire::{Flags, GrantHeader, GrantKey, Suite};

    const NOW: u64 = 1_800_000_000;

    fn place(address: &str, port: u16) -> Destination {
        Destination { address: address.parse().expect("an address"), protocol: TCP, port }
    }

    fn receiver() -> Receiver {
        let services = vec![Service { protocol: TCP, first_port: 22, last_port: 22 }];
        Receiver { name: "lab".into(), prefix: "192.0.2.0/24".parse().expect("a prefix"), services }
    }

    fn grant(handle: u64, flags: Flags, carrier: Carrier) -> Grant {
        let expires = NOW as u32 + 300;
        let header =
            GrantHeader { suite: Suite::Siphash, flags, epoch: 0, prefix_length: 24, expires, handle: Handle(handle) };
        Grant {
            secret: Secret::Grant(header, GrantKey::new([7; 16])),
            prefix: "192.0.2.0/24".parse().expect("a prefix"),
            receiver: "lab".into(),
            rule: String::new(),
            carrier,
            expires,
            sealing: Sealing::default(),
            tunnels: Vec::new(),
        }
    }

    #[test]
    fn a_grant_that_admits_in_a_tunnel_only_is_refused() {
        let (mut wallet, to) = (Wallet::new(vec![receiver()]), place("192.0.2.1", 22));
        let sealed = grant(1, Flags::SEALED, Carrier::Tail);
        assert_eq!(wallet.add(&sealed, &to, NOW, Duration::ZERO), Err(Unusable::Sealed));
        assert!(wallet.token(&to, NOW, 1).is_none());
    }

    #[test]
    fn no_token_goes_where_nothing_is_protected() {
        let mut wallet = Wallet::new(vec![receiver()]);
        let (inside, outside) = (place("192.0.2.1", 22), place("198.51.100.1", 22));
        wallet.add(&grant(1, Flags::default(), Carrier::Tail), &inside, NOW, Duration::ZERO).expect("a grant");
        assert_eq!(wallet.standing(&inside, NOW), Standing::Granted);
        assert!(wallet.token(&inside, NOW, 1).is_some());
        for to in [outside, place("192.0.2.1", 23), Destination { protocol: 17, ..inside }] {
            assert_eq!(wallet.standing(&to, NOW), Standing::NotProtected);
            assert!(wallet.token(&to, NOW, 2).is_none(), "the grant covers {to:?}, but it is no receiver's");
        }
        wallet.set_receivers(Vec::new());
        assert!(wallet.token(&inside, NOW, 3).is_none(), "the authority no longer says that it is protected");
    }

    #[test]
    fn a_grant_for_one_flow_makes_one_token() {
        let mut wallet = Wallet::new(vec![receiver()]);
        let to = place("192.0.2.1", 22);
        wallet.add(&grant(1, Flags::SINGLE, Carrier::Tail), &to, NOW, Duration::ZERO).expect("a grant");
        assert!(wallet.token(&to, NOW, 1).is_some());
        assert_eq!(wallet.standing(&to, NOW), Standing::Missing);
    }

    #[test]
    fn ended_revoked_and_unfit_grants_make_no_tokens() {
        let mut wallet = Wallet::new(vec![receiver()]);
        let to = place("192.0.2.1", 22);
        assert!(wallet.add(&grant(1, Flags::default(), Carrier::Shim), &to, NOW, Duration::ZERO).is_err());
        assert!(wallet.add(&grant(1, Flags::BEARER, Carrier::Tail), &to, NOW, Duration::ZERO).is_err());
        wallet.add(&grant(1, Flags::default(), Carrier::Tail), &to, NOW, Duration::ZERO).expect("a grant");
        assert!(wallet.token(&to, NOW + 300, 1).is_none(), "it has ended");
        wallet.revoke(Handle(1));
        assert!(wallet.token(&to, NOW, 1).is_none());
        wallet.add(&grant(2, Flags::default(), Carrier::Tail), &to, NOW, Duration::ZERO).expect("a grant");
        wallet.forget(&to, NOW);
        assert_eq!(wallet.standing(&to, NOW), Standing::Missing);
    }

    #[test]
    fn a_denial_holds_for_some_seconds() {
        let mut wallet = Wallet::new(vec![receiver()]);
        let to = place("192.0.2.1", 22);
        wallet.deny(to, NOW, "no rule".into());
        assert_eq!(wallet.standing(&to, NOW), Standing::Denied("no rule".into()));
        assert_eq!(wallet.standing(&to, NOW + DENIAL), Standing::Missing);
    }
}
