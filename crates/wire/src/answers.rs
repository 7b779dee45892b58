//! The tag of a return segment. One endpoint passes the tag on to another together with the segment (wire.md §8.15).
//! The tag proves to the receiving endpoint that the authority issued the segment.

use crate::ask::octets;
use crate::key::ProofKey;
use crate::mac::{self, MAC_LEN};
use crate::proof::Ends;
use crate::segment::Vni;
use hkdf::Hkdf;
use ring::hmac;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Length of the tag of a return segment, in bytes.
pub const TAG_LEN: usize = MAC_LEN;
/// First byte of a control message that contains a return segment (wire.md §8.15.2).
pub const MESSAGE_KIND: u8 = 1;
/// First byte of a control message that asks for an answer, to find out whether a path works (wire.md §8.16.3).
pub const PROBE: u8 = 2;
/// First byte of a control message that answers a probe.
pub const PROBE_ANSWER: u8 = 3;

const KEY_SALT: &[u8] = b"vouchsafe answers key v1";

/// Computes the tag of a return segment. The tag covers the segment's network and addresses, its Geneve option from the
/// option's class on, and the hops of its path if the path is fixed. `key` is the key of the endpoint that gets the
/// segment, for the epoch that the segment states. Returns `None` if the cryptographic library fails.
pub fn tag(key: &ProofKey, vni: Vni, ends: &Ends, option: &[u8], hops: &[[u8; 16]]) -> Option<[u8; TAG_LEN]> {
    let mut bytes = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(Some(KEY_SALT), key.bytes()).expand(&[], &mut *bytes).ok()?;
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &*bytes));
    let [v0, v1, v2] = vni.bytes();
    mac.update(&[v0, v1, v2, 0]);
    let Ends { sending, receiving, sender, receiver } = *ends;
    [sending, receiving, sender, receiver].map(octets).iter().for_each(|address| mac.update(address));
    mac.update(option);
    mac.update(hops.as_flattened());
    mac.sign().as_ref().first_chunk().copied()
}

/// Reports whether `tag` is the tag of a return segment. The comparison takes constant time.
pub fn is_tagged(key: &ProofKey, vni: Vni, ends: &Ends, option: &[u8], hops: &[[u8; 16]], tag: &[u8; TAG_LEN]) -> bool {
    self::tag(key, vni, ends, option, hops).is_some_and(|right| mac::tags_equal(&right, tag))
}
