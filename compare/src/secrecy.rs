//! Tests forward secrecy: an observer has recorded a session, and steals the long-term keys of both ends afterwards.
//! Each attempt computes every secret that follows from these keys. The attempt first opens a part of the session that
//! these secrets must open; this shows that the attempt itself is correct. Then it tries to open the data.

pub mod ike;
pub mod seal;
pub mod wireguard;

use anyhow::{Result, anyhow};
use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};

use crate::measure::emulator::Seen;

/// The outcome of an attempt to open a recorded session with stolen keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Whether the stolen keys open what forward secrecy protects: the login, the data, or the keys of the session.
    pub opened: bool,
    /// Sentence for the report that says which steps the attempt took and how far it got.
    pub evidence: String,
}

/// Returns the payloads of UDP packets from or to a port of the gateway, each with whether it went to the gateway.
fn payloads(frames: &[Seen], port: u16) -> Vec<(bool, Vec<u8>)> {
    let payload = |seen: &Seen| {
        let length = seen.ip_length()?;
        let header = usize::from(seen.frame.get(14)? & 15) * 4;
        let udp = seen.frame.get(14 + header..14 + length)?;
        let at = if seen.to_gateway { 2 } else { 0 };
        let is_wanted = seen.frame.get(23) == Some(&17) && udp.get(at..at + 2)? == port.to_be_bytes();
        is_wanted.then(|| udp.get(8..).map(<[u8]>::to_vec)).flatten().map(|payload| (seen.to_gateway, payload))
    };
    frames.iter().filter_map(payload).collect()
}

/// Opens a message that an AEAD has sealed; `None` if the key is wrong.
fn open(
    algorithm: &'static Algorithm,
    key: &[u8],
    nonce: [u8; 12],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Option<Vec<u8>>> {
    let key = UnboundKey::new(algorithm, key).map_err(|_| anyhow!("the key has a wrong length"))?;
    let mut text = sealed.to_vec();
    let opened =
        LessSafeKey::new(key).open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(associated), &mut text);
    Ok(opened.ok().map(|text| text.to_vec()))
}
