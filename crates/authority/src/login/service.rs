//! Service accounts. To log in, a machine presents a JWT that contains the nonce of a challenge. The machine signs the
//! JWT with the key that `authority service add` wrote. Issuer and subject of the JWT are the service account (in the
//! manner of RFC 7523).

use anyhow::{Context, Result};
use api::ServiceKey;
use openidconnect::core::{CoreIdToken, CoreJsonCurveType, CoreJsonWebKey, CoreJwsSigningAlgorithm};
use openidconnect::{ClientId, IdTokenVerifier, IssuerUrl, JsonWebKeySet, Nonce};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData};

/// Creates a key for a service account. Returns the key file's content and the public key in hex.
///
/// # Errors
/// Fails if the system provides no randomness.
pub fn new_key(service: &str, audience: String, ca: String) -> Result<(ServiceKey, String)> {
    let pair = KeyPair::generate_for(&PKCS_ED25519)?;
    let key = ServiceKey { service: service.to_owned(), audience, ca, key: pair.serialize_pem() };
    Ok((key, hex::encode(pair.der_bytes())))
}

/// Verifies the assertions of service accounts.
pub struct AssertionCheck {
    /// The required audience of assertions: the fingerprint of the authority's CA.
    pub(crate) audience: String,
}

impl AssertionCheck {
    /// Reports whether `assertion` is a valid answer of `service` to the challenge `nonce`: the private key that
    /// belongs to `public_key` (in hex) must have signed it.
    ///
    /// # Errors
    /// Fails if the public key is malformed.
    pub fn is_genuine(&self, assertion: &str, service: &str, nonce: &str, public_key: &str) -> Result<bool> {
        let bytes = hex::decode(public_key)
            .with_context(|| format!("the stored key of the service account {service} is malformed"))?;
        let key = CoreJsonWebKey::new_okp(bytes, CoreJsonCurveType::Ed25519, None);
        let issuer = IssuerUrl::new(format!("vouchsafe:{service}"))?;
        let verifier = IdTokenVerifier::new_public_client(
            ClientId::new(self.audience.clone()),
            issuer,
            JsonWebKeySet::new(vec![key]),
        )
        .set_allowed_algs([CoreJwsSigningAlgorithm::EdDsa]);
        let Ok(token) = assertion.parse::<CoreIdToken>() else { return Ok(false) };
        let claims = token.claims(&verifier, &Nonce::new(nonce.to_owned()));
        Ok(claims.is_ok_and(|claims| claims.subject().as_str() == service))
    }
}
