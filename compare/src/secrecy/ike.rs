//! IKEv2: the key exchange is not encrypted, and the shared key of the configuration only signs it.

use anyhow::{Context, Result, ensure};
use aws_lc_rs::aead::AES_256_GCM;
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};

use super::{Attempt, open, payloads};
use crate::measure::emulator::Seen;

/// Types of payloads (RFC 7296, section 3.2).
const KEY_EXCHANGE: u8 = 34;
const NONCE: u8 = 40;
const ENCRYPTED: u8 = 46;
/// Length of IKE's header, and the offset at which the header has the type of the first payload.
const HEADER: usize = 28;
const FIRST: usize = 16;
/// Type of the exchange that follows the first one (IKE_AUTH), and the flag of the initiator's messages.
const AUTH: u8 = 35;
const INITIATOR: u8 = 8;

fn prf(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    sign(&Key::new(HMAC_SHA256, key), &parts.concat()).as_ref().to_vec()
}

/// Expands a key by the function `prf+` (RFC 7296, section 2.13).
fn prf_plus(key: &[u8], seed: &[u8], length: usize) -> Vec<u8> {
    let (mut all, mut last) = (Vec::new(), Vec::new());
    for number in 1u8.. {
        if all.len() >= length {
            break;
        }
        last = prf(key, &[&last, seed, &[number]]);
        all.extend_from_slice(&last);
    }
    all.truncate(length);
    all
}

/// Returns the body of the first payload of a kind.
fn find(message: &[u8], wanted: u8) -> Option<&[u8]> {
    let (mut kind, mut at) = (*message.get(FIRST)?, HEADER);
    loop {
        let length = usize::from(u16::from_be_bytes(message.get(at + 2..at + 4)?.try_into().ok()?));
        if kind == wanted {
            return message.get(at + 4..at + length);
        }
        if kind == 0 || kind == ENCRYPTED || length < 4 {
            return None;
        }
        (kind, at) = (message[at], at + length);
    }
}

/// The recorded messages that an attempt needs.
struct Session {
    request: Vec<u8>,
    response: Vec<u8>,
    auth: Vec<u8>,
}

impl Session {
    fn of(frames: &[Seen]) -> Result<Self> {
        // Beside ESP on port 4500, IKE's messages begin with four zeros.
        let marked = payloads(frames, 4500).into_iter().filter(|(_, packet)| packet.starts_with(&[0; 4]));
        let moved = marked.map(|(to_gateway, packet)| (to_gateway, packet[4..].to_vec()));
        let all: Vec<_> =
            payloads(frames, 500).into_iter().chain(moved).filter(|(_, one)| one.len() > HEADER).collect();
        let with_keys = |to: bool| {
            let of = |(to_gateway, one): &&(bool, Vec<u8>)| *to_gateway == to && find(one, KEY_EXCHANGE).is_some();
            all.iter().rfind(of).map(|(_, one)| one.clone())
        };
        let auth = all.iter().find(|(to, one)| *to && one[18] == AUTH && one[19] & INITIATOR != 0);
        Ok(Self {
            request: with_keys(true).context("no request for keys was recorded")?,
            response: with_keys(false).context("no answer with keys was recorded")?,
            auth: auth.context("no authentication was recorded")?.1.clone(),
        })
    }

    /// Opens the client's authentication with `secret`. Returns `None` if `secret` is not the secret that the key
    /// exchange produced.
    fn open(&self, secret: &[u8]) -> Result<Option<Vec<u8>>> {
        let nonces =
            [find(&self.request, NONCE).context("no nonce")?, find(&self.response, NONCE).context("no nonce")?];
        let seed = prf(&nonces.concat(), &[secret]);
        // First SK_d (32), then SK_ei and SK_er (32 and a salt of 4 each). There are no SK_ai and SK_ar, because the
        // cipher authenticates by itself.
        let spis = &self.response[..16];
        let keys = prf_plus(&seed, &[nonces[0], nonces[1], spis].concat(), 32 + 36 * 2);
        let (key, salt) = (&keys[32..64], &keys[64..68]);
        let sealed = find(&self.auth, ENCRYPTED).context("the recorded authentication message is not encrypted")?;
        ensure!(sealed.len() > 24, "the recorded authentication message is too short");
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(salt);
        nonce[4..].copy_from_slice(&sealed[..8]);
        // RFC 5282, section 5.1: the header, and what is before the sealed payload's body.
        open(&AES_256_GCM, key, nonce, &self.auth[..HEADER + 4], &sealed[8..])
    }
}

/// Tries to open a recorded session with the shared key of the configuration. `exchanged` is the secret that the key
/// exchange produced, from the log of one end. This secret must open the session, which shows that the attempt itself
/// is correct.
///
/// # Errors
/// Fails if the key exchange or the client's authentication was not recorded, or if `exchanged` does not open the
/// session.
pub fn attempt(frames: &[Seen], shared_key: &[u8], exchanged: &[u8]) -> Result<Attempt> {
    let session = Session::of(frames)?;
    ensure!(session.open(exchanged)?.is_some(), "the secret from the log does not open the recorded session");
    let padded = prf(shared_key, &[b"Key Pad for IKEv2"]);
    let mut raw = shared_key.to_vec();
    raw.resize(32, 0);
    let guesses: [&[u8]; 4] = [shared_key, &raw, &padded, &[0; 32]];
    let mut opened = false;
    for guess in guesses {
        opened |= session.open(guess)?.is_some();
    }
    let evidence = format!(
        "the secret of the key exchange, taken from the log of one end, opens the recorded login; of the {} secrets \
         that can be computed from the shared key, {}",
        guesses.len(),
        if opened { "one opens it, too" } else { "none opens it" }
    );
    Ok(Attempt { opened, evidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_found_in_their_chain() {
        let mut message = vec![0; HEADER];
        message[FIRST] = KEY_EXCHANGE;
        message.extend([NONCE, 0, 0, 6, 1, 2]);
        message.extend([0, 0, 0, 7, 7, 8, 9]);
        assert_eq!(find(&message, KEY_EXCHANGE), Some(&[1, 2][..]));
        assert_eq!(find(&message, NONCE), Some(&[7, 8, 9][..]));
        assert_eq!(find(&message, ENCRYPTED), None);
        assert_eq!(find(&message[..HEADER + 3], KEY_EXCHANGE), None);
    }

    #[test]
    fn the_derivation_goes_on_from_its_last_block() {
        let long = prf_plus(b"key", b"seed", 70);
        assert_eq!((long.len(), &long[..32]), (70, &prf(b"key", &[b"seed", &[1]])[..]));
        assert_eq!(long[32..64], prf(b"key", &[&long[..32], b"seed", &[2]])[..]);
    }
}
