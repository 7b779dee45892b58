//! How a machine proves that it holds a service account's key: a signed answer to the authority's challenge.

use anyhow::{Context, Result, anyhow};
use engine::api::ServiceKey;
use openidconnect::core::{CoreEdDsaPrivateSigningKey, CoreIdToken, CoreIdTokenClaims, CoreJwsSigningAlgorithm};
use openidconnect::{Audience, EmptyAdditionalClaims, IssuerUrl, Nonce, StandardClaims, SubjectIdentifier};
use std::time::{Duration, SystemTime};

/// How long an assertion is good, for clocks that differ; the challenge is good once, and for a minute.
const LIFETIME: Duration = Duration::from_secs(600);

/// Signs the challenge `nonce`.
pub fn sign(key: &ServiceKey, nonce: &str) -> Result<String> {
    let ServiceKey { service, audience, key, .. } = key;
    let key = CoreEdDsaPrivateSigningKey::from_ed25519_pem(key, None)
        .map_err(|error| anyhow!("the service account's key can't be read: {error}"))?;
    let issuer = IssuerUrl::new(format!("vouchsafe:{service}")).context("the service account's name")?;
    let claims = CoreIdTokenClaims::new(
        issuer,
        vec![Audience::new(audience.clone())],
        (SystemTime::now() + LIFETIME).into(),
        SystemTime::now().into(),
        StandardClaims::new(SubjectIdentifier::new(service.clone())),
        EmptyAdditionalClaims {},
    );
    let claims = claims.set_nonce(Some(Nonce::new(nonce.to_owned())));
    let token = CoreIdToken::new(claims, &key, CoreJwsSigningAlgorithm::EdDsa, None, None);
    Ok(token.context("the assertion can't be signed")?.to_string())
}
