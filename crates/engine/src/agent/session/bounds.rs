//! Ends the grants that a session may no longer use, because the networks of its organisation have changed, because
//! this machine has moved, or because the session ends.

use super::super::Output;
use super::{Destination, FOREIGN, Frame, HeldGrant, Outputs, Session, Why};
use ipnet::IpNet;
use std::net::IpAddr;

impl Session {
    /// Sends a packet without identity, because none of the user's sessions is allowed to give it a token. Lets further
    /// packets to the destination pass for some time, too.
    pub fn pass(&mut self, unix: u64, place: Destination, frame: Option<Frame>, outputs: &mut Outputs) {
        self.go_plain(place, unix + FOREIGN, Why::Foreign, outputs);
        if let Some(frame) = frame {
            outputs.push_back(Output::Send(self.subject, frame));
        }
    }

    /// Removes everything about addresses for which the session may no longer speak: receivers for which `may_claim` is
    /// false, and destinations for whose addresses `owns` is false. Drops packets that are queued for these
    /// destinations; the programs that sent these packets send them again.
    pub fn confine(
        &mut self,
        may_claim: impl Fn(&IpNet) -> bool,
        owns: impl Fn(IpAddr) -> bool,
        outputs: &mut Outputs,
    ) {
        if !self.receivers().iter().all(|receiver| may_claim(&receiver.prefix)) {
            let (mut receivers, sealed) = (self.receivers().to_vec(), self.receivers.sealed().clone());
            receivers.retain(|receiver| may_claim(&receiver.prefix));
            self.set_receivers(receivers, sealed, outputs);
        }
        self.keep_plain(|place, _, _| owns(place.address), outputs);
        let gone: Vec<_> = self.grants.places().filter(|place| !owns(place.address)).copied().collect();
        self.remove_places(&gone, outputs);
        for place in self.queue.places().iter().filter(|place| !owns(place.address)) {
            while self.queue.take(place, |_| true).is_some() {}
        }
        self.wanted.retain(|place| owns(place.address));
    }

    /// Drops all grants that are bound to an address of this machine.
    pub fn drop_bound(&mut self, outputs: &mut Outputs) {
        self.drop_grants(HeldGrant::is_bound, outputs);
    }

    /// Removes everything of the session from the kernel.
    pub fn forget_all(&mut self, outputs: &mut Outputs) {
        self.drop_grants(|_| true, outputs);
        self.keep_plain(|_, _, _| false, outputs);
    }
}
