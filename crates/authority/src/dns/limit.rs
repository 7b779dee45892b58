//! Response-rate limiting: a stranger who forges somebody's address sends them no more than a trickle through us.
//!
//! Buckets are found by a hash with a secret, in a table that never grows: who shares one is chance, and nobody's choice.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Instant;

/// Answers a second for a network (an IPv4 /24, an IPv6 /56), and how many at once.
pub const RATE: u32 = 20;
const BURST: u32 = 60;
const BUCKETS: usize = 16_384;

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent.
    Send,
    /// In its place goes a short one that says "ask by TCP", which is no longer than the question.
    Shorten,
    /// None is sent.
    Drop,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// Answers to have, in thousandths.
    left: u32,
    /// Milliseconds since the start when it was filled last.
    filled: u32,
    /// Whether the last one over the limit was dropped.
    dropped: bool,
}

/// The table.
pub struct Limit {
    start: Instant,
    secret: RandomState,
    buckets: Vec<Bucket>,
}

impl Limit {
    /// Full buckets.
    pub fn new(start: Instant) -> Self {
        let full = Bucket { left: BURST * 1000, filled: 0, dropped: false };
        Self { start, secret: RandomState::new(), buckets: vec![full; BUCKETS] }
    }

    /// Counts an answer to `to`.
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
