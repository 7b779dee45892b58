//! WireGuard: Noise_IKpsk2, for an observer who has the static private keys of both ends but no ephemeral private key.

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::aead::CHACHA20_POLY1305;
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use blake2::{Blake2s256, Digest};

use super::{Attempt, open, payloads};
use crate::measure::emulator::Seen;

type Key = [u8; 32];

fn hash(parts: &[&[u8]]) -> Key {
    let mut hash = Blake2s256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn hmac(key: &Key, parts: &[&[u8]]) -> Key {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(key).for_each(|(block, key)| *block ^= key);
        block
    };
    let inner = hash(&[&[&pad(0x36)[..]], parts].concat());
    hash(&[&pad(0x5c), &inner])
}

/// Returns the first keys of the protocol's key derivation.
fn kdf<const N: usize>(chain: &Key, input: &[u8]) -> [Key; N] {
    let root = hmac(chain, &[input]);
    let mut keys = [[0; 32]; N];
    let mut last: Vec<u8> = Vec::new();
    for (number, key) in (1u8..).zip(&mut keys) {
        *key = hmac(&root, &[&last, &[number]]);
        last = key.to_vec();
    }
    keys
}

fn shared(secret: &Key, public: &[u8]) -> Result<Key> {
    let key = PrivateKey::from_private_key(&X25519, secret).map_err(|_| anyhow!("not a private key"))?;
    agree(&key, UnparsedPublicKey::new(&X25519, public), anyhow!("not a public key"), |shared| {
        shared.try_into().map_err(|_| anyhow!("the shared secret does not have 32 bytes"))
    })
}

fn public(secret: &Key) -> Result<Key> {
    let key = PrivateKey::from_private_key(&X25519, secret).map_err(|_| anyhow!("not a private key"))?;
    let public = key.compute_public_key().map_err(|_| anyhow!("no public key"))?;
    public.as_ref().try_into().context("the public key does not have 32 bytes")
}

/// The state of the handshake.
struct State {
    chain: Key,
    hash: Key,
}

impl State {
    fn new(responder: &Key) -> Self {
        let chain = hash(&[b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"]);
        let start = hash(&[&chain, b"WireGuard v1 zx2c4 Jason@zx2c4.com"]);
        Self { chain, hash: hash(&[&start, responder]) }
    }

    fn mix(&mut self, public: &[u8]) {
        self.hash = hash(&[&self.hash, public]);
        [self.chain] = kdf(&self.chain, public);
    }

    /// Mixes in a shared secret and opens a field; the state goes on only if that succeeds.
    fn open(&mut self, secret: &Key, field: &[u8]) -> Result<Option<Vec<u8>>> {
        let [chain, key] = kdf(&self.chain, secret);
        let text = open(&CHACHA20_POLY1305, &key, [0; 12], &self.hash, field)?;
        if text.is_some() {
            (self.chain, self.hash) = (chain, hash(&[&self.hash, field]));
        }
        Ok(text)
    }

    /// Reports whether the confirmation in the second message, or the data, can be opened with two secrets: `ephemeral`
    /// is that of the two ephemeral keys, and `half` that of the client's static and the server's ephemeral key.
    fn opens(&self, ephemeral: &Key, half: &Key, confirmation: &[u8], data: &[u8]) -> Result<bool> {
        let [chain] = kdf(&self.chain, ephemeral);
        let [chain] = kdf(&chain, half);
        let [chain, temporary, key] = kdf(&chain, &[0; 32]);
        let over = hash(&[&self.hash, &temporary]);
        let [to_server, _] = kdf(&chain, &[]);
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&data[8..16]);
        Ok(open(&CHACHA20_POLY1305, &key, [0; 12], &over, confirmation)?.is_some()
            || open(&CHACHA20_POLY1305, &to_server, nonce, &[], &data[16..])?.is_some())
    }
}

/// Tries to open a recorded session with the private keys of client and server.
///
/// # Errors
/// Fails if no handshake or no data was recorded, or if the keys belong to another session.
pub fn attempt(frames: &[Seen], port: u16, client: &Key, server: &Key) -> Result<Attempt> {
    let packets = payloads(frames, port);
    let find = |to_gateway: bool, kind: u8, length: usize| {
        let of = |(to, packet): &&(bool, Vec<u8>)| *to == to_gateway && packet.len() >= length && packet[0] == kind;
        packets.iter().rfind(of).map(|(_, packet)| packet.as_slice())
    };
    let first = find(true, 1, 148).context("no first message of a handshake was recorded")?;
    let second = find(false, 2, 92).context("no second message of a handshake was recorded")?;
    let data = find(true, 4, 48).context("no data was recorded")?;
    let mut state = State::new(&public(server)?);
    let ephemeral = &first[8..40];
    state.mix(ephemeral);
    let name = state.open(&shared(server, ephemeral)?, &first[40..88])?;
    ensure!(name.as_deref() == Some(&public(client)?[..]), "the stolen keys do not open the first message");
    let stamp = state.open(&shared(client, &public(server)?)?, &first[88..116])?;
    ensure!(stamp.is_some(), "the stolen keys do not open the time in the first message");
    let theirs = &second[12..44];
    state.mix(theirs);
    // The session's keys derive from the secret of both ephemeral keys. The stolen keys give only these other secrets.
    let substitutes = [
        shared(client, theirs)?,
        shared(server, ephemeral)?,
        shared(server, theirs)?,
        shared(client, ephemeral)?,
        shared(client, &public(server)?)?,
        [0; 32],
    ];
    let mut opened = false;
    for secret in substitutes {
        opened |= state.opens(&secret, &shared(client, theirs)?, &second[44..60], data)?;
    }
    let evidence = format!(
        "the private keys of both ends open the client's name and the time in the first message; of the {} secrets \
         that can be computed from these keys, {} the second message or data",
        substitutes.len(),
        if opened { "one opens" } else { "none opens" }
    );
    Ok(Attempt { opened, evidence })
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};

    use super::*;

    #[test]
    fn the_hash_is_that_of_the_standard() {
        // RFC 7693, appendix B: BLAKE2s of "abc".
        let wanted = "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982";
        let got: String = hash(&[b"abc"]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, wanted);
    }

    #[test]
    fn a_session_whose_ephemeral_key_is_known_is_opened() {
        // The initiator's and the responder's parts, as the protocol has them, and the attack given the right secret.
        let [client, server, own, theirs]: [Key; 4] = [[1; 32], [2; 32], [3; 32], [4; 32]];
        let mut state = State::new(&public(&server).unwrap());
        state.mix(&public(&own).unwrap());
        state.mix(&public(&theirs).unwrap());
        let ephemeral = shared(&theirs, &public(&own).unwrap()).unwrap();
        let half = shared(&theirs, &public(&client).unwrap()).unwrap();
        // The server's confirmation, and the client's first data.
        let [chain] = kdf(&state.chain, &ephemeral);
        let [chain] = kdf(&chain, &half);
        let [chain, temporary, key] = kdf(&chain, &[0; 32]);
        let [to_server, _] = kdf(&chain, &[]);
        let seal = |key: &Key, over: &[u8]| {
            let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).unwrap());
            let mut text = b"sixteen bytes...".to_vec();
            key.seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::from(over), &mut text).unwrap();
            text
        };
        let data = [&[4, 0, 0, 0, 9, 9, 9, 9][..], &[0; 8], &seal(&to_server, &[])].concat();
        let confirmation = seal(&key, &hash(&[&state.hash, &temporary]));
        let own_half = shared(&client, &public(&theirs).unwrap()).unwrap();
        assert!(state.opens(&ephemeral, &own_half, &confirmation, &data).unwrap());
        assert!(state.opens(&ephemeral, &own_half, &[0; 16], &data).unwrap(), "data alone suffice");
        assert!(!state.opens(&own_half, &own_half, &confirmation, &data).unwrap());
    }
}
