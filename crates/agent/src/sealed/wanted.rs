//! A tunnel that flows need, and the times at which to request grants for it. Only one request is open at a time, and
//! the pause grows after each failure.

use engine::agent::Clock;
use engine::model::Sealing;
use engine::tunnel::Terms;
use std::net::SocketAddr;
use std::time::Duration;
use wire::packet::UDP;
use wire::{Destination, GrantHeader, GrantKey};

/// Number of seconds before its expiry at which the grant for a tunnel is renewed. A grant with a short lifetime is
/// renewed after two thirds of its lifetime.
const RENEW_BEFORE: u32 = 60;
/// Minimum interval between requests for the grant of a tunnel, and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Assumed maximum length in bytes of a datagram to the verifier that contains an initiation and a packet.
const ROOM: usize = 1280 - 48;

/// A tunnel that flows need.
pub(super) struct Wanted {
    sealing: Sealing,
    /// The latest grant.
    grant: Option<(GrantHeader, GrantKey)>,
    /// Time at which the grant has to be renewed, Unix seconds by the authority's clock; 0 if there is no usable grant.
    renew_at: u32,
    /// Whether a request has been sent and not answered yet.
    is_requested: bool,
    /// When the next request is allowed.
    next: Duration,
    /// Number of requests in a row that brought no grant.
    failures: u32,
    /// Whether the latest request failed because the authority could not be reached.
    is_unreached: bool,
}

impl Wanted {
    /// Creates a tunnel without a grant.
    pub fn new(sealing: Sealing) -> Self {
        Self {
            sealing,
            grant: None,
            renew_at: 0,
            is_requested: false,
            next: Duration::ZERO,
            failures: 0,
            is_unreached: false,
        }
    }

    /// Makes the demands on the tunnel's keys at least as strict as `sealing`. Returns whether this changed the terms.
    pub fn demand(&mut self, sealing: &Sealing) -> bool {
        let stricter = Sealing {
            forward_secrecy: self.sealing.forward_secrecy || sealing.forward_secrecy,
            rekey: self.sealing.rekey.min(sealing.rekey),
            ..self.sealing
        };
        std::mem::replace(&mut self.sealing, stricter) != stricter
    }

    /// Reports whether the caller has to request a grant now. If so, records the request.
    pub fn request(&mut self, now: Duration, unix: u32) -> bool {
        let is_due = !self.is_requested && self.renew_at <= unix && self.next <= now;
        self.is_requested |= is_due;
        is_due
    }

    /// Makes the tunnel's grant unusable, because the verifier refuses it.
    pub fn refuse(&mut self) {
        self.renew_at = 0;
    }

    /// Stores the grant that answers the request. The grant is renewed before it ends.
    pub fn granted(&mut self, now: Duration, unix: u32, (header, key): (GrantHeader, GrantKey)) {
        let lifetime = header.expires.saturating_sub(unix);
        self.renew_at = header.expires.saturating_sub((lifetime / 3).min(RENEW_BEFORE));
        self.grant = Some((header, key));
        (self.is_requested, self.failures, self.is_unreached) = (false, 0, false);
        self.next = now + PAUSE.0;
    }

    /// Records that the request brought no usable grant.
    pub fn failed(&mut self, now: Duration, is_unreached: bool) {
        self.next = now + PAUSE.0.saturating_mul(1 << self.failures.min(10)).min(PAUSE.1);
        self.failures += 1;
        (self.is_requested, self.is_unreached) = (false, is_unreached);
    }

    /// Ends the pause after a failure to reach the authority, because it answers again.
    pub fn reached(&mut self) {
        if std::mem::take(&mut self.is_unreached) {
            (self.next, self.failures) = (Duration::ZERO, 0);
        }
    }

    /// Returns the terms of the tunnel, if it has a grant.
    pub fn terms(&self, service: SocketAddr) -> Option<Terms> {
        let (grant, key) = self.grant.clone()?;
        Some(Terms {
            grant,
            key,
            to: destination(service),
            forward: self.sealing.forward_secrecy,
            suites: tunnel::suites(),
            rekey_after: u64::from(self.sealing.rekey) * 1000,
            room: ROOM,
        })
    }
}

/// Returns the destination of a tunnel's UDP packets.
pub(super) fn destination(service: SocketAddr) -> Destination {
    Destination { address: service.ip(), protocol: UDP, port: service.port() }
}

/// Returns the time `now` as Unix seconds of `clock`.
pub(super) fn unix(clock: &Clock, now: Duration) -> u32 {
    u32::try_from(clock.unix(now)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Flags, Handle, Suite};

    const UNIX: u32 = 1_800_000_000;

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn grant(expires: u32) -> (GrantHeader, GrantKey) {
        let header = GrantHeader {
            suite: Suite::Siphash,
            flags: Flags::PORT,
            epoch: 0,
            prefix_length: 32,
            expires,
            handle: Handle(7),
        };
        (header, GrantKey::new([7; 16]))
    }

    #[test]
    fn one_request_is_open_at_a_time_and_failures_make_pauses() {
        let mut wanted = Wanted::new(Sealing::NONE);
        assert!(wanted.request(second(10), UNIX));
        assert!(!wanted.request(second(1000), UNIX), "it is not answered yet");
        let mut now = 1000;
        for pause in [2, 4, 8, 16, 32, 60, 60] {
            wanted.failed(second(now), false);
            assert!(!wanted.request(second(now + pause - 1), UNIX), "{pause}");
            assert!(wanted.request(second(now + pause), UNIX), "{pause}");
            now += pause;
        }
        wanted.granted(second(now), UNIX, grant(UNIX + 300));
        assert!(!wanted.request(second(now + 100), UNIX + 239));
        assert!(wanted.request(second(now + 100), UNIX + 240));
    }

    #[test]
    fn an_authority_that_answers_again_is_asked_at_once_and_one_that_denies_is_not() {
        let mut wanted = Wanted::new(Sealing::NONE);
        for (is_unreached, asks) in [(true, true), (false, false)] {
            (0..5).for_each(|_| wanted.failed(second(100), is_unreached));
            wanted.reached();
            assert_eq!(wanted.request(second(101), UNIX), asks);
        }
    }

    #[test]
    fn a_grant_of_twenty_seconds_is_renewed_after_two_thirds() {
        let mut wanted = Wanted::new(Sealing::NONE);
        wanted.granted(second(10), UNIX, grant(UNIX + 20));
        assert!(!wanted.request(second(23), UNIX + 13));
        assert!(wanted.request(second(24), UNIX + 14));
        wanted.granted(second(24), UNIX + 14, grant(UNIX + 15));
        assert!(!wanted.request(second(25), UNIX + 15), "not without end, if grants are of no use");
        assert!(wanted.request(second(26), UNIX + 16));
    }
}
