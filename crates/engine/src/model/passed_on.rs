//! A return segment that the authority issues together with the path segment whose packets it answers (wire.md §8.15).
//! The endpoint that gets both segments passes the return segment on to the endpoint that sends the answers.

use super::Given;
use std::borrow::Borrow;
use std::net::Ipv6Addr;
use wire::answers::{TAG_LEN, is_tagged, tag};
use wire::{Ends, ProofKey, Segment, Vni};

/// The authority's answer to a request for a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The segment.
    pub given: Given,
    /// The return segment, in the form in which the receiving endpoint gets it; empty if there is none. The holder of
    /// `given` can't check it, and only passes it on.
    pub answers: Vec<u8>,
    /// Number of other paths that the segment could take.
    pub others: u8,
}

impl From<Given> for Issued {
    fn from(given: Given) -> Self {
        Self { given, answers: Vec::new(), others: 0 }
    }
}

impl Given {
    /// Encodes this return segment in the form in which it is passed on (wire.md §8.15.1). The segment that it answers
    /// has a path. `key` is the key of the last verifier on this path, for the epoch that the return segment states.
    /// Returns `None` if the cryptographic library fails.
    pub fn passed_on(&self, key: &ProofKey) -> Option<Vec<u8>> {
        let (option, hops) = (self.option(), octets(&self.hops));
        let tag = tag(key, self.vni, &self.ends, &option, &hops)?;
        Some([&tag[..], &option, hops.as_flattened()].concat())
    }

    /// Parses a return segment that was passed on. `key` returns this endpoint's key for the authority and the epoch
    /// that the segment states. Returns `None` unless the authority issued this segment, for these addresses, to the
    /// owner of the key.
    pub fn from_passed_on<K: Borrow<ProofKey>>(
        bytes: &[u8],
        vni: Vni,
        ends: Ends,
        key: impl FnOnce(&Segment) -> Option<K>,
    ) -> Option<Self> {
        let (tag, segment) = bytes.split_first_chunk::<TAG_LEN>()?;
        let words = *segment.get(3)?;
        let (option, hops) = segment.split_at_checked(4 + 4 * usize::from(words))?;
        let (hops, none) = hops.as_chunks::<16>();
        if !none.is_empty() {
            return None;
        }
        let path = hops.iter().map(|hop| Ipv6Addr::from(*hop)).collect();
        let given = Self::from_option(option, vni, ends, path).ok()?;
        let key = key(&given.segment)?;
        is_tagged(key.borrow(), vni, &ends, option, hops, tag).then_some(given)
    }
}

fn octets(hops: &[Ipv6Addr]) -> Vec<[u8; 16]> {
    hops.iter().map(Ipv6Addr::octets).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use wire::{InterfaceId, SegmentFlags, Suite};

    fn given() -> Given {
        let [sending, receiving, sender, receiver] =
            ["192.0.2.2", "192.0.2.1", "10.0.0.7", "10.0.0.5"].map(|text| text.parse::<IpAddr>().unwrap());
        let segment = Segment {
            suite: Suite::Siphash,
            count: 1,
            pointer: 0,
            flags: SegmentFlags::RETURN,
            protocol: 0,
            epoch: 3,
            expires: 1000,
            interface: InterfaceId(5),
            port: 0,
            sender_port: 0,
            authority: [198, 51, 100, 1].into(),
        };
        let ends = Ends { sending, receiving, sender, receiver };
        Given { segment, vni: Vni::from([0, 0, 9]), ends, proofs: vec![[7; 16]], hops: vec![] }
    }

    #[test]
    fn only_what_the_authority_issued_to_the_owner_of_the_key_is_read() {
        let (given, key) = (given(), ProofKey::new([4; 32]));
        let bytes = given.passed_on(&key).unwrap();
        let read = |bytes: &[u8], vni, ends, key: [u8; 32]| {
            Given::from_passed_on(bytes, vni, ends, |segment| (segment.epoch == 3).then(|| ProofKey::new(key)))
        };
        assert_eq!(read(&bytes, given.vni, given.ends, [4; 32]).as_ref(), Some(&given));
        assert_eq!(read(&bytes, given.vni, given.ends, [5; 32]), None, "another endpoint's");
        assert_eq!(read(&bytes, Vni::from([0, 0, 8]), given.ends, [4; 32]), None);
        for ends in [
            Ends { sender: given.ends.receiver, receiver: given.ends.sender, ..given.ends },
            Ends { receiver: [10, 0, 0, 6].into(), ..given.ends },
            Ends { receiving: [192, 0, 2, 3].into(), ..given.ends },
            Ends { sending: [192, 0, 2, 3].into(), ..given.ends },
        ] {
            assert_eq!(read(&bytes, given.vni, ends, [4; 32]), None, "{ends:?}");
        }
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&other, given.vni, given.ends, [4; 32]), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], given.vni, given.ends, [4; 32]), None, "{length} bytes");
        }
        assert_eq!(read(&[&bytes[..], &[0; 16]].concat(), given.vni, given.ends, [4; 32]), None, "a hop more");
    }
}
