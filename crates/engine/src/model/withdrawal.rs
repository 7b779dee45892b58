//! Withdrawn consent (wire.md §8.10).

use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::Vni;

/// A receiver's withdrawal of consent, for one sender or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withdrawal {
    /// The number of the virtual network.
    pub vni: Vni,
    /// Receiver that no longer consents.
    pub receiver: IpAddr,
    /// Sender that the withdrawal concerns; `None` for all senders.
    pub sender: Option<IpAddr>,
}

/// The withdrawals in force, each with the latest expiry of the segments that it voids.
#[derive(Clone, Debug, Default)]
pub struct Withdrawals(BTreeMap<Withdrawal, u32>);

impl Withdrawals {
    /// Adds a withdrawal that voids the segments that expire at `until` or before.
    pub fn add(&mut self, what: Withdrawal, until: u32) {
        let known = self.0.entry(what).or_default();
        *known = until.max(*known);
    }

    /// Removes withdrawals that void only expired segments.
    pub fn sweep(&mut self, now: u32) {
        self.0.retain(|_, until| *until > now);
    }

    /// Iterates over the withdrawals, each with the latest expiry of the segments that it voids.
    pub fn iter(&self) -> impl Iterator<Item = (&Withdrawal, u32)> {
        self.0.iter().map(|(what, until)| (what, *until))
    }

    /// Reports whether a withdrawal voids segments between this sender and receiver that expire at `expires`.
    pub fn void(&self, vni: Vni, sender: IpAddr, receiver: IpAddr, expires: u32) -> bool {
        [Some(sender), None].into_iter().any(|sender| {
            let what = Withdrawal { vni, receiver, sender };
            self.0.get(&what).is_some_and(|until| expires <= *until)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawal_voids_what_ends_by_then_of_its_sender_or_of_all() {
        let [sender, other, receiver] = [5, 6, 7].map(|last| IpAddr::from([10, 0, 0, last]));
        let [before, vni, red] = [99, 100, 200].map(|number| Vni::new(number).unwrap());
        let own = Withdrawal { vni, receiver, sender: Some(sender) };
        let unlike = [(before, receiver), (vni, other), (red, other)];
        let mut known = Withdrawals::default();
        for (vni, receiver) in unlike {
            known.add(Withdrawal { vni, receiver, ..own }, 50);
        }
        known.add(own, 50);
        let void = |known: &Withdrawals, from, to, vni, expires| known.void(vni, from, to, expires);
        assert!(void(&known, sender, receiver, vni, 50) && !void(&known, sender, receiver, vni, 51));
        assert!(!void(&known, other, receiver, vni, 50) && !void(&known, receiver, sender, vni, 50));
        assert!(!void(&known, sender, receiver, red, 50));
        known.add(Withdrawal { sender: None, ..own }, 50);
        assert!(void(&known, other, receiver, vni, 50));
    }

    #[test]
    fn of_two_withdrawals_the_later_counts_and_what_has_ended_goes() {
        let vni = Vni::new(7).unwrap();
        let one =
            |sender: u8| Withdrawal { vni, receiver: [10, 0, 0, 7].into(), sender: Some([10, 0, 0, sender].into()) };
        let mut known = Withdrawals::default();
        for (sender, until) in [(5, 200), (6, 100), (5, 150)] {
            known.add(one(sender), until);
        }
        known.sweep(100);
        assert_eq!(known.iter().collect::<Vec<_>>(), [(&one(5), 200)]);
    }
}
