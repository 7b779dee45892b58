//! Handles tenants' packets, requests for segments, the answers to these requests, and segments that have become void.

use super::Daemon;
use crate::now;
use crate::session::News;
use api::Withdrawal;
use client::{Asker, Error};
use datapath::svtep::{self, Unsent};
use engine::endpoint::{self, Action, Refusal, Wanted};
use engine::model::{self, Issued};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use wire::Vni;
use wire::map::{SegmentEntry, SegmentKey, UnsentHeader, segment_state};

/// Position of the network's number (VNI) in a Geneve header.
const VNI_AT: std::ops::Range<usize> = 4..7;
/// HTTP statuses that say nothing about consent: too many requests, and faults of the authority (`FAULTS` and above).
const TOO_MANY: u16 = 429;
const FAULTS: u16 = 500;

/// The authority's answer to a request.
pub(super) struct Answer {
    wanted: Wanted,
    answer: Result<Issued, Error>,
}

/// Numbers of requests for segments that were answered with a segment, that were refused, and that failed for another
/// reason.
#[derive(Clone, Copy, Default)]
pub(super) struct Answers {
    pub given: u64,
    pub refused: u64,
    pub failed: u64,
}

fn time() -> u32 {
    u32::try_from(now()).unwrap_or(u32::MAX)
}

impl Daemon {
    pub(super) fn handed_over(&mut self, unsent: &Unsent) {
        let header = &unsent.header;
        let (interface, limit, is_super) = (header.interface, header.limit, header.segment != 0);
        let packet = endpoint::Unsent { interface, limit, is_super, frame: &unsent.frame };
        let Self { endpoint, kernel, .. } = self;
        let svtep::Svtep { consents, segments, .. } = kernel.program();
        let consent = |key: &SegmentKey| consents.get(key).ok().flatten();
        let entry = |key: &SegmentKey| segments.get(key).ok().flatten();
        let actions = if limit == UnsentHeader::CONTROL {
            endpoint.controlled(interface, &unsent.frame, consent, entry, time())
        } else {
            endpoint.handed_over(&packet, consent, entry, time()).into_iter().collect()
        };
        actions.into_iter().for_each(|action| self.perform(action));
    }

    fn perform(&mut self, action: Action) {
        let done = match action {
            Action::Ask(wanted, request) => {
                self.ask(wanted, move |asker| async move { asker.segment_with_answers(&request).await });
                Ok(())
            }
            Action::AskBoth(wanted, request) => {
                self.ask(wanted, move |asker| async move { asker.both_segments(&request).await });
                Ok(())
            }
            Action::AskBack(wanted, shown) => {
                self.ask(wanted, move |asker| async move { asker.answer_segment(&shown).await.map(Issued::from) });
                Ok(())
            }
            Action::Write(key, entry) => self.kernel.program().segments.set(&key, &entry),
            Action::Send { from, to, hops, datagram } => self.outlets.send(from, to, &hops, &datagram),
            Action::Tell { interface, frame } => self.outlets.tell(interface, &frame),
        };
        if let Err(error) = done {
            tracing::warn!("cannot handle a tenant's packet: {error:#}");
        }
    }

    /// Sends a request in the session of the tenant's service account.
    fn ask<F>(&mut self, wanted: Wanted, question: impl FnOnce(Asker) -> F + Send + 'static)
    where
        F: Future<Output = Result<Issued, Error>> + Send,
    {
        let session = self.places.get(&wanted.interface).and_then(|place| self.sessions.get(self.asks[*place]));
        let Some(asker) = session.and_then(|session| session.standing().asker) else {
            let answer = Err(Error::Unreachable("the tenant's service account is not logged in".to_owned()));
            return self.answered(Answer { wanted, answer });
        };
        let answers = self.answer_sender.clone();
        tokio::spawn(async move {
            let answer = question(asker).await;
            let _ = answers.send(Answer { wanted, answer }).await;
        });
    }

    pub(super) fn answered(&mut self, Answer { wanted, answer }: Answer) {
        let why = answer.as_ref().err().map(ToString::to_string);
        let answer = answer.map_err(|error| {
            tracing::debug!(interface = wanted.interface, "cannot get a segment: {error}");
            refusal(&error)
        });
        match answer {
            Ok(_) => self.answers.given += 1,
            Err(Refusal::Denied) => self.answers.refused += 1,
            Err(Refusal::Unreachable) => self.answers.failed += 1,
        }
        let actions = self.endpoint.answered(&wanted, answer, time());
        for action in actions {
            if let (Action::Write(key, entry), Some(why)) = (&action, &why)
                && entry.state() == segment_state::REFUSED
            {
                self.refusals.note(key, why.clone(), now());
            }
            self.perform(action);
        }
    }

    pub(super) fn news(&mut self, session: usize, news: &News) {
        match news {
            News::Withdrawn(withdrawn) => self.withdraw(withdrawn),
            // A request that was refused may be granted now.
            News::Changed => {
                let refused = self.kernel.program().segments.entries().into_iter().filter(|(key, entry)| {
                    let place = self.places.get(&key.interface);
                    entry.state() == segment_state::REFUSED && place.is_some_and(|place| self.asks[*place] == session)
                });
                self.forget(refused.map(|(key, _)| key));
            }
        }
    }

    /// Records withdrawals. Removes the segments and consents that the withdrawals end from the tables.
    pub(super) fn withdraw(&mut self, withdrawn: &[Withdrawal]) {
        if withdrawn.is_empty() {
            return;
        }
        let read = |one: &Withdrawal| {
            let &Withdrawal { vni, receiver, sender, until } = one;
            Some((model::Withdrawal { vni: Vni::new(vni)?, receiver, sender }, until))
        };
        self.endpoint.withdraw(withdrawn.iter().filter_map(read));
        self.forget_void();
    }

    /// Removes void segments from the tables.
    pub(super) fn forget_void(&self) {
        let Self { endpoint, kernel, .. } = self;
        let segments = kernel.program().segments.entries();
        self.forget(segments.iter().filter(|(key, entry)| endpoint.is_void(key, entry)).map(|(key, _)| *key));
        let consents = &kernel.program().consents;
        for (key, _) in consents.entries().into_iter().filter(|(key, consent)| endpoint.voids_consent(key, consent)) {
            if let Err(error) = consents.remove(&key) {
                tracing::error!("cannot remove a consent to answers, although it is no longer valid: {error:#}");
            }
        }
    }

    /// Removes segments that an earlier process stored for another tenant behind this interface. `place` is the index
    /// of the present tenant in the settings.
    pub(super) fn forget_others(&self, interface: u32, place: usize) {
        let tenant = &self.settings.tenants[place].tenant;
        let vni = tenant.vni.bytes();
        let is_others = |key: &SegmentKey, geneve: &[u8]| {
            let is_tenants =
                geneve.get(VNI_AT).is_none_or(|found| found == vni) && tenant.addresses.contains(&key.sender());
            key.interface == interface && !is_tenants
        };
        let svtep::Svtep { segments, consents, .. } = self.kernel.program();
        let segments = segments.entries().into_iter().filter(|(key, entry)| is_others(key, entry.geneve()));
        self.forget(segments.map(|(key, _)| key));
        for (key, _) in consents.entries().into_iter().filter(|(key, consent)| is_others(key, consent.geneve())) {
            if let Err(error) = consents.remove(&key) {
                tracing::error!("cannot remove a consent to answers, although it is no longer valid: {error:#}");
            }
        }
    }

    fn forget(&self, keys: impl Iterator<Item = SegmentKey>) {
        for key in keys {
            if let Err(error) = self.kernel.program().segments.remove(&key) {
                tracing::error!(
                    interface = key.interface,
                    "cannot remove a segment that is no longer valid: {error:#}"
                );
            }
        }
    }

    /// Sends probes to the endpoints for which the authority knows several paths, and changes the path if need be.
    pub(super) fn probe(&mut self) {
        if self.endpoint.ways().is_empty() {
            return;
        }
        let before: Vec<_> = self.endpoint.ways().iter().map(|(to, way)| (*to, way.number)).collect();
        let Self { endpoint, kernel, .. } = self;
        let segments = &kernel.program().segments;
        // The hasher has a random key.
        let (hasher, mut count) = (RandomState::new(), 0_u64);
        let random = || {
            count += 1;
            hasher.hash_one(count)
        };
        let actions = endpoint.probe(|key| segments.get(key).ok().flatten(), random, time());
        for (to, number) in before {
            let now = endpoint.ways().get(&to).map_or(number, |way| way.number);
            if now < number {
                tracing::info!(endpoint = %to, "requesting segments for path {now} instead of path {number}");
            } else if now > number {
                tracing::warn!(
                    endpoint = %to,
                    "the endpoint does not answer on path {number}: requesting segments for path {now}"
                );
            }
        }
        actions.into_iter().for_each(|action| self.perform(action));
    }

    /// Renews segments that are in use and end soon, and removes those that have expired.
    pub(super) fn renew(&mut self) {
        let time = time();
        self.endpoint.sweep(time);
        let entries = self.kernel.program().segments.entries();
        self.endpoint.follow_paths(&entries, time);
        let by_flow: BTreeSet<_> = entries
            .iter()
            .filter(|(key, entry)| key.is_for_one_flow() && entry.until > time)
            .map(|(key, _)| in_order(&key.for_every_flow()))
            .collect();
        let is_over = |(key, entry): &&(SegmentKey, SegmentEntry)| match entry.state() {
            segment_state::BY_FLOW => !by_flow.contains(&in_order(key)),
            _ => entry.until <= time,
        };
        self.forget(entries.iter().filter(is_over).map(|(key, _)| *key));
        let refused = entries.iter().filter(|(_, entry)| entry.state() == segment_state::REFUSED && entry.until > time);
        let refused: BTreeSet<_> = refused.map(|(key, _)| in_order(key)).collect();
        self.refusals.keep(|key| refused.contains(key));
        let Self { endpoint, kernel, .. } = self;
        let consents = &kernel.program().consents;
        let renew = |(key, entry): &(SegmentKey, SegmentEntry)| {
            endpoint.renew(key, entry, |key| consents.get(key).ok().flatten(), time)
        };
        let actions: Vec<_> = entries.iter().filter_map(renew).collect();
        for (key, _) in consents.entries().into_iter().filter(|(_, consent)| consent.expires <= time) {
            // The table may have evicted the entry already.
            let _ = consents.remove(&key);
        }
        actions.into_iter().for_each(|action| self.perform(action));
    }
}

/// A form of a segment's key that has an order, for sets.
pub(super) type Ordered = (u32, IpAddr, IpAddr, u8, (u16, u16), bool);

pub(super) fn in_order(key: &SegmentKey) -> Ordered {
    (key.interface, key.sender(), key.receiver(), key.protocol, key.ports(), key.is_back())
}

/// Classifies an error by what it says about consent.
fn refusal(error: &Error) -> Refusal {
    match error {
        // A segment that does not fit the request counts as a denial.
        Error::Denied(_) | Error::Unusable(_) => Refusal::Denied,
        Error::Refused(problem) if problem.status != TOO_MANY && problem.status < FAULTS => Refusal::Denied,
        _ => Refusal::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Problem;

    #[test]
    fn only_what_is_about_consent_counts_as_a_denial() {
        let problem = |status| Problem { r#type: "x".into(), title: "x".into(), status, detail: None };
        assert_eq!(refusal(&Error::Denied(problem(403))), Refusal::Denied);
        assert_eq!(refusal(&Error::Refused(problem(409))), Refusal::Denied);
        for error in [Error::Refused(problem(429)), Error::Refused(problem(503)), Error::NotLoggedIn] {
            assert_eq!(refusal(&error), Refusal::Unreachable);
        }
    }
}
