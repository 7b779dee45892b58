//! Response rate limiting. An attacker who forges a victim's address can make this server send the victim's network at
//! most 20 full answers per second on average. Beyond this rate, the server answers only every second query, with a
//! truncated answer that is at most as long as the query.
//!
//! The number of token buckets is fixed. A keyed hash of a network selects its bucket, so an attacker cannot choose the
//! bucket.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Instant;

/// Sustained rate for a network (an IPv4 /24 or an IPv6 /56), in answers per second.
pub const RATE: u32 = 20;
/// Maximum number of answers to a network in a burst.
const BURST: u32 = 60;
/// Number of token buckets. Networks may share a bucket.
const BUCKETS: usize = 16_384;

/// The decision about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the answer.
    Send,
    /// Send a truncated answer, which makes the client retry by TCP. The answer is no longer than the query.
    Shorten,
    /// Do not send the answer.
    Drop,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// Tokens left, in thousandths of an answer.
    left: u32,
    /// Time of the last refill, in milliseconds since the start of the [`Limit`].
    filled: u32,
    /// Whether the previous answer beyond the rate was dropped. The next answer beyond the rate is then shortened.
    dropped: bool,
}

/// The token buckets of all networks.
pub struct Limit {
    start: Instant,
    secret: RandomState,
    buckets: Vec<Bucket>,
}

impl Limit {
    /// Creates a table in which all buckets are full at the time `start`.
    pub fn new(start: Instant) -> Self {
        let full = Bucket { left: BURST * 1000, filled: 0, dropped: false };
        Self { start, secret: RandomState::new(), buckets: vec![full; BUCKETS] }
    }

    /// Decides whether to send, shorten or drop an answer to the address `to`. If the bucket of this address contains a
    /// token, takes the token and decides to send. If the bucket is empty, decides alternately to drop and to shorten.
    pub fn charge(&mut self, to: IpAddr, now: Instant) -> Verdict {
        let place = self.secret.hash_one(network(to)) as usize % BUCKETS;
        let bucket = &mut self.buckets[place];
        let millis = now.saturating_duration_since(self.start).as_millis() as u32;
        let more = millis.wrapping_sub(bucket.filled).saturating_mul(RATE);
        bucket.left = bucket.left.saturating_add(more).min(BURST * 1000);
        bucket.filled = millis;
        if bucket.left >= 1000 {
            bucket.left -= 1000;
            return Verdict::Send;
        }
        bucket.dropped = !bucket.dropped;
        if bucket.dropped { Verdict::Drop } else { Verdict::Shorten }
    }
}

fn network(address: IpAddr) -> [u8; 7] {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            [4, a, b, c, 0, 0, 0]
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            std::array::from_fn(|index| octets[index])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_in_one_networks_name_is_a_trickle_and_others_notice_nothing() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let forged = |n: u32| IpAddr::from([192, 0, 2, n as u8]);
        let verdicts: Vec<_> = (0..1000).map(|n| limit.charge(forged(n), start)).collect();
        let count = |verdict| verdicts.iter().filter(|other| **other == verdict).count();
        assert_eq!(count(Verdict::Send), BURST as usize);
        assert_eq!(count(Verdict::Shorten), count(Verdict::Drop));
        assert_eq!(limit.charge(forged(1), start + Duration::from_millis(1000 / u64::from(RATE))), Verdict::Send);
        let elsewhere = (0..64u8).map(|n| IpAddr::from([198, 51, n, 1]));
        let served = elsewhere.filter(|address| limit.charge(*address, start) == Verdict::Send).count();
        assert!(served >= 62, "{served}");
    }
}
