//! Logs in with a service account's key: signs an assertion with the nonce from the authority's challenge.

use crate::{Authority, Error};
use api::{ServiceKey, ServiceLogin, Session};
use openidconnect::core::{CoreEdDsaPrivateSigningKey, CoreIdToken, CoreIdTokenClaims, CoreJwsSigningAlgorithm};
use openidconnect::{Audience, EmptyAdditionalClaims, IssuerUrl, Nonce, StandardClaims, SubjectIdentifier};
use std::time::{Duration, SystemTime};

/// Validity of an assertion, long enough for clocks that differ. Reuse is limited by the challenge instead, which is
/// valid once and for a minute.
const LIFETIME: Duration = Duration::from_secs(600);

impl Authority {
    /// Logs a machine in with its service account's key. The answer contains a token for [`Self::with_token`].
    ///
    /// # Errors
    ///
    /// Fails if the key is malformed, if the authority does not accept the key, or if the authority can't be reached.
    pub async fn login_by_key(&self, key: &ServiceKey, device: &str) -> Result<Session, Error> {
        // Only the authority that made the challenge accepts the answer.
        let authority = self.at_one().await?;
        let nonce = authority.challenge().await?.nonce;
        let assertion = sign(key, &nonce)?;
        let (service, device) = (key.service.clone(), device.to_owned());
        authority.service_login(&ServiceLogin { service, nonce, assertion, device }).await
    }
}

/// Signs the challenge `nonce`.
fn sign(key: &ServiceKey, nonce: &str) -> Result<String, Error> {
    let broken = |what: &str, why: &dyn std::fmt::Display| Error::Other(format!("{what}: {why}"));
    let ServiceKey { service, audience, key, .. } = key;
    let key = CoreEdDsaPrivateSigningKey::from_ed25519_pem(key, None)
        .map_err(|error| broken("cannot read the service account's key", &error))?;
    let issuer = IssuerUrl::new(format!("vouchsafe:{service}"))
        .map_err(|error| broken("the name of the service account is invalid", &error))?;
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
    token.map(|token| token.to_string()).map_err(|error| broken("cannot sign with the service account's key", &error))
}
