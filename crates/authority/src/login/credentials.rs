//! Creates, hashes and verifies passwords, second factors, bearer tokens and one-time codes.

use crate::storage::{Account, TokenHash};
use anyhow::{Context, Result, anyhow, bail};
use argon2::password_hash::{PasswordHasher, phc::PasswordHash, phc::Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use totp_rs::{Builder, Secret, Totp};
use zeroize::Zeroizing;

/// Minimum length of a password, in characters.
const LEAST_PASSWORD: usize = 8;
/// Maximum length of a password that is hashed, in bytes.
pub const MOST_PASSWORD: usize = 1024;

/// Hashes a new password with argon2id and the crate's defaults (19 MiB, two passes: the minimum that OWASP
/// recommends).
///
/// # Errors
/// Fails if the password is too short or too long, or the system provides no randomness.
pub fn hash_password(password: &str) -> Result<String> {
    if password.chars().count() < LEAST_PASSWORD || password.len() > MOST_PASSWORD {
        bail!("a password must have at least {LEAST_PASSWORD} characters and at most {MOST_PASSWORD} bytes");
    }
    let salt: [u8; Salt::RECOMMENDED_LENGTH] = random()?;
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    Ok(hash.map_err(|error| anyhow!("cannot hash the password: {error}"))?.to_string())
}

/// Memory for verifying passwords, 19 MiB after the first use. Callers reuse this memory, because the allocator would
/// otherwise keep 19 MiB of freed memory for every thread that has verified a password.
#[derive(Default)]
pub struct Scratch(Vec<Block>);

/// Reports whether `password` matches `hash`, an argon2 hash in PHC form.
///
/// # Errors
/// Fails if the hash is malformed.
pub fn password_matches(password: &str, hash: &str, scratch: &mut Scratch) -> Result<bool> {
    let broken = |error: &dyn std::fmt::Display| anyhow!("a stored password hash is malformed: {error}");
    let hash = PasswordHash::new(hash).map_err(|error| broken(&error))?;
    let algorithm = Algorithm::try_from(hash.algorithm.as_str()).map_err(|error| broken(&error))?;
    let version = hash.version.map(Version::try_from).transpose().map_err(|error| broken(&error))?.unwrap_or_default();
    let params = Params::try_from(&hash).map_err(|error| broken(&error))?;
    let (Some(salt), Some(expected)) = (hash.salt, hash.hash) else { bail!(broken(&"it has no salt or no hash")) };
    scratch.0.resize(params.block_count(), Block::new());
    let mut found = Zeroizing::new(vec![0; expected.len()]);
    let argon2 = Argon2::new(algorithm, version, params);
    argon2
        .hash_password_into_with_memory(password.as_bytes(), &salt, &mut found, &mut scratch.0[..])
        .map_err(|error| anyhow!("cannot hash the password: {error}"))?;
    Ok(found.ct_eq(expected.as_bytes()).into())
}

/// Returns a new account with this password. With `totp`, the account has a second factor, and the function also
/// returns its `otpauth://` address for an authenticator app.
///
/// # Errors
/// Fails if the password is too short or too long, or the system provides no randomness.
pub fn new_account(person: &str, password: &str, totp: bool) -> Result<(Account, Option<Zeroizing<String>>)> {
    let password = hash_password(password)?;
    if !totp {
        return Ok((Account { password, totp: None }, None));
    }
    let (secret, address) = new_totp(person)?;
    Ok((Account { password, totp: Some(secret) }, Some(address)))
}

/// Returns a new TOTP secret and its `otpauth://` address for an authenticator app.
///
/// # Errors
/// Fails if the system provides no randomness.
pub fn new_totp(person: &str) -> Result<(Zeroizing<Vec<u8>>, Zeroizing<String>)> {
    let secret = Zeroizing::new(random::<20>()?.to_vec());
    let (_, address) = totp_address(person, &secret);
    Ok((secret, address))
}

/// Returns a TOTP secret in base32, as users type it, and its `otpauth://` address for an authenticator app.
pub fn totp_address(person: &str, secret: &[u8]) -> (Zeroizing<String>, Zeroizing<String>) {
    let base32 = Zeroizing::new(Secret::from(secret.to_vec()).to_base32());
    let (label, text) = (person.replace('@', "%40").replace('+', "%2B"), base32.as_str());
    let address = format!("otpauth://totp/Vouchsafe:{label}?secret={text}&issuer=Vouchsafe");
    (base32, Zeroizing::new(address))
}

/// Returns the time step of a TOTP code, or `None` if the code is not valid at `now` (RFC 6238, 30 s, one step of
/// tolerance).
///
/// # Errors
/// Fails if the stored secret is malformed.
pub fn totp_step(secret: &[u8], code: &str, now: u64) -> Result<Option<u64>> {
    let totp: Totp =
        Builder::new().with_secret(secret.to_vec()).build().context("a stored TOTP secret is malformed")?;
    if code.len() != 6 || !code.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    Ok(totp.check(code, now))
}

/// Returns a new bearer token or one-time code of `BYTES` random bytes, in hex, and the hash to store.
///
/// # Errors
/// Fails if the system provides no randomness.
pub fn new_token<const BYTES: usize>() -> Result<(Zeroizing<String>, TokenHash)> {
    let token = Zeroizing::new(hex::encode(Zeroizing::new(random::<BYTES>()?)));
    let hash = token_hash(&token);
    Ok((token, hash))
}

/// Returns the hash that is stored in place of a token. Tokens are random, so a plain hash is enough, and an attacker
/// learns nothing useful from the timing of a look-up by hash.
pub fn token_hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// Returns random bytes from the system.
///
/// # Errors
/// Fails if the system provides no randomness.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("cannot get random numbers: {error}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_matches_its_hash_only() {
        let hash = hash_password("correct horse").unwrap();
        assert!(hash.starts_with("$argon2id$"));
        let mut scratch = Scratch::default();
        assert!(password_matches("correct horse", &hash, &mut scratch).unwrap());
        // Earlier contents of the scratch memory make no difference.
        for wrong in ["correct horsf", "", &"x".repeat(MOST_PASSWORD)] {
            assert!(!password_matches(wrong, &hash, &mut scratch).unwrap());
        }
        assert!(password_matches("correct horse", &hash, &mut scratch).unwrap());
        assert!(password_matches("correct horse", "$argon2id$v=19$m=8,t=1,p=1", &mut scratch).is_err());
        assert!(hash_password("short").is_err());
    }

    #[test]
    fn codes_are_those_of_rfc_6238() {
        let secret = b"12345678901234567890";
        assert_eq!(totp_step(secret, "287082", 59).unwrap(), Some(1));
        assert_eq!(totp_step(secret, "287082", 89).unwrap(), Some(1));
        assert_eq!(totp_step(secret, "287082", 120).unwrap(), None);
        assert_eq!(totp_step(secret, "28708", 59).unwrap(), None);
    }
}
