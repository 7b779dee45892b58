//! Requests to the identity provider, and the verification of its answers. The authority is the provider's relying
//! party.

use super::http::{Failure, Http};
use super::{Identity, ProviderSettings, settings};
use crate::Directory;
use anyhow::{Context, Result, anyhow};
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreAuthenticationFlow, CoreClaimName, CoreClaimType, CoreClientAuthMethod,
    CoreDeviceAuthorizationResponse, CoreErrorResponseType, CoreGenderClaim, CoreGrantType, CoreJsonWebKey,
    CoreJweContentEncryptionAlgorithm, CoreJweKeyManagementAlgorithm, CoreJwsSigningAlgorithm, CoreResponseMode,
    CoreResponseType, CoreRevocableToken, CoreRevocationErrorResponse, CoreSubjectIdentifierType,
    CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AccessToken, AccessTokenHash, AdditionalClaims, AdditionalProviderMetadata, AuthorizationCode, ClientId,
    ClientSecret, CsrfToken, DeviceAuthorizationUrl, EmptyExtraTokenFields, EndSessionUrl, EndpointMaybeSet,
    EndpointNotSet, EndpointSet, IdToken, IdTokenFields, IdTokenVerifier, IssuerUrl, JsonWebTokenType, LogoutRequest,
    Nonce, NonceVerifier, OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, ProviderMetadata, RedirectUrl,
    RefreshToken, RequestTokenError, RevocationUrl, Scope, StandardErrorResponse, StandardTokenResponse,
    SubjectIdentifier, TokenResponse, UserInfoClaims,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify};

/// Age at which the cached metadata of the provider, including its keys, is fetched again.
const METADATA_TIME: Duration = Duration::from_secs(600);
/// Minimum time between a fetch of the metadata, successful or not, and the next one.
const METADATA_PAUSE: Duration = Duration::from_secs(5);
/// Maximum time that a logout waits for the provider's metadata.
const FAREWELL_TIME: Duration = Duration::from_secs(2);
/// Tolerated difference between the provider's clock and the authority's when ages are checked, in seconds.
const SKEW: i64 = 60;
/// Scopes that are requested by default, as far as the provider supports them.
const SCOPES: [&str; 4] = ["profile", "email", "groups", "offline_access"];
/// Accepted signature algorithms. Algorithms with a shared secret, and `none`, are not among them.
const SIGNATURES: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];
/// The event that identifies a logout token (OpenID Connect Back-Channel Logout 1.0, §2.4).
const LOGOUT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Accepted `typ` headers of an ID token and of a logout token (RFC 8725, §3.11).
const ID_TYPES: [&str; 1] = ["JWT"];
const LOGOUT_TYPES: [&str; 2] = ["JWT", "logout+jwt"];

/// The claims that OpenID Connect does not define.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Claims(Map<String, Value>);
impl AdditionalClaims for Claims {}

/// Provider metadata that OpenID Connect Discovery does not define.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Endpoints {
    device_authorization_endpoint: Option<DeviceAuthorizationUrl>,
    end_session_endpoint: Option<EndSessionUrl>,
    revocation_endpoint: Option<RevocationUrl>,
}
impl AdditionalProviderMetadata for Endpoints {}

type Metadata = ProviderMetadata<
    Endpoints,
    CoreAuthDisplay,
    CoreClientAuthMethod,
    CoreClaimName,
    CoreClaimType,
    CoreGrantType,
    CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm,
    CoreJsonWebKey,
    CoreResponseMode,
    CoreResponseType,
    CoreSubjectIdentifierType,
>;
type Tokens = StandardTokenResponse<
    IdTokenFields<
        Claims,
        EmptyExtraTokenFields,
        CoreGenderClaim,
        CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm,
    >,
    CoreTokenType,
>;
type Client = openidconnect::Client<
    Claims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    Tokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;
type Token = IdToken<Claims, CoreGenderClaim, CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm>;

/// The reason why a login or a renewal failed.
pub enum Refusal {
    /// The provider refused the person, or its answer failed verification. The text is a one-line message for the
    /// person.
    No(String),
    /// The provider cannot be reached, or its answer violates the protocol.
    Unavailable(anyhow::Error),
}

/// The verified result of a login or renewal.
pub struct Verified {
    /// The person's identity.
    pub identity: Identity,
    /// The token for the next renewal, if the provider issued one. Secret.
    pub refresh_token: Option<RefreshToken>,
}

/// A browser's redirect to the provider, and the values by which the authority recognises the browser when it returns.
pub struct Departure {
    /// The URL to which the browser is sent.
    pub url: String,
    /// The state that the browser must bring back.
    pub state: String,
    /// The nonce that the ID token must contain.
    pub nonce: Nonce,
    /// The PKCE verifier for the exchange of the code. Secret.
    pub verifier: PkceCodeVerifier,
    /// The URL to which the provider sends the browser back.
    pub redirect: RedirectUrl,
}

/// A back-channel logout by the provider, which ends one session or all sessions of a person.
#[derive(Debug, PartialEq, Eq)]
pub struct Logout {
    /// The provider's identifier for the person.
    pub subject: String,
    /// The provider's identifier for its session. `None` ends all of the person's sessions.
    pub sid: Option<String>,
}

struct Cached {
    metadata: Result<Arc<Metadata>, String>,
    since: Instant,
}

/// The identity provider of an authority.
pub struct Provider {
    pub(crate) settings: ProviderSettings,
    http: Http,
    issuer: IssuerUrl,
    secret: Option<ClientSecret>,
    cached: Mutex<Option<Cached>>,
}

impl Provider {
    /// Reads the client secret and the CA certificates that the configuration names. Does not contact the provider.
    ///
    /// # Errors
    /// Fails if a file cannot be read, the certificates are malformed, or the issuer is not a URL.
    pub fn new(settings: ProviderSettings, directory: &Directory) -> Result<Self> {
        let read = |file: &std::path::Path| {
            let path = directory.path().join(file);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let secret = settings.client_secret_file.as_deref().map(read).transpose()?;
        let secret = secret.map(|text| ClientSecret::new(text.trim().to_owned()));
        let ca = settings.ca_file.as_deref().map(read).transpose()?;
        let http = Http::new(ca.as_deref().map(str::as_bytes))?;
        let issuer = IssuerUrl::new(settings.issuer.clone())?;
        Ok(Self { settings, http, issuer, secret, cached: Mutex::new(None) })
    }

    /// Prepares to send a browser to the provider for a login. The provider later sends the browser back to the URL
    /// `redirect`. If `name` is given, the state begins with this name and a dot.
    ///
    /// # Errors
    /// Fails if the provider's metadata cannot be fetched, or `redirect` is not a valid URL.
    pub async fn depart(&self, redirect: String, name: Option<&str>) -> Result<Departure, Refusal> {
        let metadata = self.metadata(false).await?;
        let redirect = RedirectUrl::new(redirect).map_err(|error| Refusal::Unavailable(error.into()))?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let client = self.client(&metadata).set_redirect_uri(redirect.clone());
        let flow = CoreAuthenticationFlow::AuthorizationCode;
        let random = CsrfToken::new_random();
        let state = match name {
            Some(name) => CsrfToken::new(format!("{name}.{}", random.secret())),
            None => random,
        };
        let mut request = client.authorize_url(flow, || state, Nonce::new_random);
        request = request.add_scopes(self.scopes(&metadata)).set_pkce_challenge(challenge);
        if let Some(age) = self.settings.reauthenticate {
            request = request.set_max_age(Duration::from_secs(age.into()));
        }
        let (url, state, nonce) = request.url();
        Ok(Departure { url: url.into(), state: state.into_secret(), nonce, verifier, redirect })
    }

    /// Redeems at the provider the authorization code that a browser brought back, and verifies the tokens in the
    /// provider's answer.
    ///
    /// # Errors
    /// Fails if the provider refuses the code or cannot be reached, or its tokens fail verification.
    pub async fn arrive(&self, departure: Departure, code: String) -> Result<Verified, Refusal> {
        let metadata = self.metadata(false).await?;
        let client = self.client(&metadata).set_redirect_uri(departure.redirect);
        let request = client.exchange_code(AuthorizationCode::new(code)).map_err(broken)?;
        let tokens = request.set_pkce_verifier(departure.verifier).request_async(&self.http).await.map_err(refused)?;
        self.verified(&tokens, &departure.nonce, None).await
    }

    /// Begins a login by device code (RFC 8628) and returns the provider's codes and addresses.
    ///
    /// # Errors
    /// Fails if the provider does not support device codes, refuses the request, or cannot be reached.
    pub async fn device(&self) -> Result<CoreDeviceAuthorizationResponse, Refusal> {
        let metadata = self.metadata(false).await?;
        let url = metadata.additional_metadata().device_authorization_endpoint.clone();
        let url =
            url.ok_or_else(|| Refusal::No("the identity provider does not support login by device code".into()))?;
        let client = self.client(&metadata).set_device_authorization_url(url);
        let request = client.exchange_device_code().add_scopes(self.scopes(&metadata));
        request.request_async(&self.http).await.map_err(refused)
    }

    /// Polls the provider until the person has entered the code or the code has expired. Before it polls again, waits as
    /// long as the provider demands. Then it waits until `wanted` reports that the agent has asked again. So if the
    /// agent no longer asks, the provider gets no more requests.
    ///
    /// # Errors
    /// Fails if the person denied the login, the code expired, the provider cannot be reached, or its tokens fail
    /// verification.
    pub async fn await_device(
        &self,
        details: &CoreDeviceAuthorizationResponse,
        wanted: &Notify,
    ) -> Result<Verified, Refusal> {
        let metadata = self.metadata(false).await?;
        let client = self.client(&metadata);
        let request = client.exchange_device_access_token(details).map_err(broken)?;
        let pause = |time| async move {
            tokio::time::sleep(time).await;
            wanted.notified().await;
        };
        let tokens = request.request_async(&self.http, pause, None).await.map_err(refused)?;
        // There is no nonce to check: the authority received the token over its own connection, for its own code.
        self.verified(&tokens, |_: Option<&Nonce>| Ok(()), None).await
    }

    /// Requests the present identity of a person whom the provider has identified before. If the provider sends no new
    /// refresh token, the result contains the old token.
    ///
    /// # Errors
    /// Fails if the provider refuses the token or cannot be reached, or its answer fails verification or is about
    /// another subject.
    pub async fn renew(&self, subject: &str, token: &RefreshToken) -> Result<Verified, Refusal> {
        let metadata = self.metadata(false).await?;
        let client = self.client(&metadata);
        let request = client.exchange_refresh_token(token).map_err(broken)?;
        let tokens = request.request_async(&self.http).await.map_err(refused)?;
        let mut renewed = self.verified(&tokens, |_: Option<&Nonce>| Ok(()), Some(subject)).await?;
        renewed.refresh_token.get_or_insert_with(|| token.clone());
        Ok(renewed)
    }

    /// Revokes a refresh token at the provider. Does nothing if the provider does not support revocation, or if its
    /// metadata cannot be fetched.
    ///
    /// # Errors
    /// Fails if the provider refuses to revoke the token, or does not answer the request to revoke it.
    pub async fn forget(&self, token: RefreshToken) -> Result<()> {
        let Ok(metadata) = self.metadata(false).await else { return Ok(()) };
        let Some(url) = metadata.additional_metadata().revocation_endpoint.clone() else { return Ok(()) };
        let client = self.client(&metadata).set_revocation_url(url);
        client.revoke_token(token.into())?.request_async(&self.http).await.context("cannot revoke the refresh token")
    }

    /// Returns the address at which a browser ends the provider's own session (OpenID Connect RP-Initiated Logout 1.0).
    /// Returns `None` if the provider publishes no such address or does not answer within two seconds. The authority
    /// keeps no ID token that it could send as a hint, so the provider asks the person for confirmation.
    pub async fn farewell(&self) -> Option<String> {
        let metadata = tokio::time::timeout(FAREWELL_TIME, self.metadata(false)).await.ok()?.ok()?;
        let place = metadata.additional_metadata().end_session_endpoint.clone();
        let place = place.filter(|place| settings::is_confidential(place.url()))?;
        let request = LogoutRequest::from(place).set_client_id(ClientId::new(self.settings.client_id.clone()));
        Some(request.http_get_url().into())
    }

    /// Verifies a logout token (OpenID Connect Back-Channel Logout 1.0).
    ///
    /// # Errors
    /// Fails if the token is malformed or fails verification, or the provider's keys cannot be fetched.
    pub async fn logout(&self, token: &str) -> Result<Logout, Refusal> {
        let token: Token =
            token.parse().map_err(|_| Refusal::No("the value of `logout_token` is not a token".into()))?;
        let no_nonce = |nonce: Option<&Nonce>| match nonce {
            // The standard forbids a nonce, so that an ID token is not mistaken for a logout token.
            Some(_) => Err("a logout token must have no nonce".to_owned()),
            None => Ok(()),
        };
        let claims = self.claims(&token, no_nonce, &LOGOUT_TYPES).await?;
        let is_logout = claims.get("events").and_then(|events| events.get(LOGOUT)).is_some_and(Value::is_object);
        let subject = claims.get("sub").and_then(Value::as_str).filter(|_| is_logout);
        let subject =
            subject.ok_or_else(|| Refusal::No("the value of `logout_token` is not a logout token".into()))?.to_owned();
        Ok(Logout { subject, sid: claims.get("sid").and_then(Value::as_str).map(str::to_owned) })
    }

    async fn verified<N: NonceVerifier + Clone>(
        &self,
        tokens: &Tokens,
        nonce: N,
        subject: Option<&str>,
    ) -> Result<Verified, Refusal> {
        let mut claims = match (tokens.id_token(), subject) {
            (Some(token), _) => {
                let claims = self.claims(token, nonce, &ID_TYPES).await?;
                self.check_age(&claims)?;
                self.check_hash(token, &claims, tokens.access_token()).await?;
                claims
            }
            // A renewal may return no ID token (OpenID Connect Core, §12.2). The claims then come from UserInfo.
            (None, Some(subject)) if self.settings.reauthenticate.is_none() => {
                Map::from_iter([("sub".to_owned(), subject.into())])
            }
            _ => {
                return Err(Refusal::No(
                    "the identity provider sent no ID token: check that it allows the scope `openid`".into(),
                ));
            }
        };
        if subject.is_some_and(|subject| claims.get("sub").and_then(Value::as_str) != Some(subject)) {
            return Err(Refusal::No("the identity provider's answer is about another person".into()));
        }
        if Identity::lacks(&self.settings, &claims) {
            let user_info = self.user_info(&claims, tokens.access_token()).await?;
            Identity::add_user_info(&mut claims, user_info);
        }
        let identity = Identity::read(&self.settings, &claims).map_err(Refusal::No)?;
        Ok(Verified { identity, refresh_token: tokens.refresh_token().cloned() })
    }

    /// Returns the claims of an ID token or logout token after checking issuer, audience, signature, expiry and nonce.
    /// If a check fails, the keys are fetched once more, because the provider may have changed them.
    async fn claims<N: NonceVerifier + Clone>(
        &self,
        token: &Token,
        nonce: N,
        types: &[&str],
    ) -> Result<Map<String, Value>, Refusal> {
        let mut last = String::new();
        for anew in [false, true] {
            let metadata = self.metadata(anew).await?;
            let types = types.iter().filter_map(|name| JsonWebTokenType::new((*name).to_owned()).normalize().ok());
            let verifier = self.verifier(&metadata).set_allowed_jose_types(types);
            match token.claims(&verifier, nonce.clone()) {
                Ok(claims) => match serde_json::to_value(claims) {
                    Ok(Value::Object(claims)) => return Ok(claims),
                    _ => return Err(Refusal::No("cannot read the identity provider's claims".into())),
                },
                Err(error) => last = format!("{:#}", anyhow!(error)),
            }
        }
        tracing::warn!("a token of the identity provider failed verification: {last}");
        Err(Refusal::No("the identity provider's answer failed verification; see the authority's log".into()))
    }

    fn verifier(&self, metadata: &Metadata) -> IdTokenVerifier<'_, CoreJsonWebKey> {
        let client_id = ClientId::new(self.settings.client_id.clone());
        IdTokenVerifier::new_public_client(client_id, self.issuer.clone(), metadata.jwks().clone())
            .set_allowed_algs(SIGNATURES)
    }

    fn check_age(&self, claims: &Map<String, Value>) -> Result<(), Refusal> {
        let Some(most) = self.settings.reauthenticate else { return Ok(()) };
        let at = claims.get("auth_time").and_then(Value::as_i64);
        match at {
            Some(at) if crate::now().cast_signed() - at <= i64::from(most) + SKEW => Ok(()),
            Some(_) => Err(Refusal::No("the login at the identity provider is too old: log in there again".into())),
            None => Err(Refusal::No("the identity provider does not say when the person logged in there".into())),
        }
    }

    /// Checks that the access token belongs to the ID token whose verified claims are `claims`. Without the claim
    /// `at_hash`, there is nothing to check.
    async fn check_hash(
        &self,
        token: &Token,
        claims: &Map<String, Value>,
        access: &AccessToken,
    ) -> Result<(), Refusal> {
        let Some(expected) = claims.get("at_hash").and_then(Value::as_str) else { return Ok(()) };
        let metadata = self.metadata(false).await?;
        let verifier = self.verifier(&metadata);
        let algorithm = token.signing_alg().map_err(|error| Refusal::No(error.to_string()))?;
        let key = token.signing_key(&verifier).map_err(|error| Refusal::No(error.to_string()))?;
        match AccessTokenHash::from_token(access, algorithm, key) {
            Ok(actual) if actual.as_str() == expected => Ok(()),
            _ => Err(Refusal::No("the identity provider's tokens do not belong together".into())),
        }
    }

    async fn user_info(
        &self,
        claims: &Map<String, Value>,
        access: &AccessToken,
    ) -> Result<Map<String, Value>, Refusal> {
        let metadata = self.metadata(false).await?;
        let subject = claims.get("sub").and_then(Value::as_str).map(|text| SubjectIdentifier::new(text.to_owned()));
        let client = self.client(&metadata);
        let Ok(request) = client.user_info(access.clone(), subject) else { return Ok(Map::new()) };
        let answer: UserInfoClaims<Claims, CoreGenderClaim> =
            request.request_async(&self.http).await.map_err(|error| Refusal::Unavailable(anyhow!(error)))?;
        match serde_json::to_value(answer) {
            Ok(Value::Object(claims)) => Ok(claims),
            _ => Ok(Map::new()),
        }
    }

    fn client(&self, metadata: &Metadata) -> Client {
        let client_id = ClientId::new(self.settings.client_id.clone());
        Client::from_provider_metadata(metadata.clone(), client_id, self.secret.clone())
    }

    fn scopes(&self, metadata: &Metadata) -> Vec<Scope> {
        let supported = |scope: &&str| {
            let all = metadata.scopes_supported();
            all.is_none_or(|all| all.iter().any(|one| one.as_str() == *scope))
        };
        match &self.settings.scopes {
            Some(scopes) => scopes.iter().filter(|scope| *scope != "openid").cloned().map(Scope::new).collect(),
            None => SCOPES.iter().filter(|scope| supported(scope)).map(|scope| Scope::new((*scope).into())).collect(),
        }
    }

    /// Returns the provider's metadata. With `anew`, fetches it again unless it was fetched within the last
    /// [`METADATA_PAUSE`].
    async fn metadata(&self, anew: bool) -> Result<Arc<Metadata>, Refusal> {
        let mut cached = self.cached.lock().await;
        let age = if anew { METADATA_PAUSE } else { METADATA_TIME };
        let current = cached
            .as_ref()
            .filter(|cached| cached.since.elapsed() < if cached.metadata.is_ok() { age } else { METADATA_PAUSE });
        let unavailable = |error: String| Refusal::Unavailable(anyhow!(error));
        if let Some(current) = current {
            return current.metadata.clone().map_err(unavailable);
        }
        let fetched = Metadata::discover_async(self.issuer.clone(), &self.http).await;
        let metadata = match fetched {
            Ok(metadata) => Ok(Arc::new(metadata)),
            Err(error) => {
                let error = format!("cannot fetch the metadata of {}: {:#}", self.settings.issuer, anyhow!(error));
                match cached.take().map(|cached| cached.metadata) {
                    // An unauthenticated sender can cause this fetch with a logout token that names an unknown key. So
                    // if it fails, the earlier copy stays.
                    Some(Ok(before)) if anew => {
                        *cached = Some(Cached { metadata: Ok(before), since: Instant::now() });
                        return Err(unavailable(error));
                    }
                    // The keys most likely did not change during a brief outage of the provider.
                    Some(Ok(before)) => {
                        tracing::warn!("{error}. The authority continues with the copy that it fetched earlier");
                        Ok(before)
                    }
                    _ => Err(error),
                }
            }
        };
        *cached = Some(Cached { metadata: metadata.clone(), since: Instant::now() });
        metadata.map_err(unavailable)
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Refusal {
    Refusal::Unavailable(anyhow!(error).context("the identity provider has no token endpoint"))
}

/// Distinguishes a refusal (the provider answered with an error) from an outage (no answer, or an invalid one).
fn refused<E>(error: RequestTokenError<Failure, E>) -> Refusal
where
    E: openidconnect::ErrorResponse + std::fmt::Display + Send + Sync + 'static,
{
    match error {
        RequestTokenError::ServerResponse(answer) => {
            Refusal::No(format!("the identity provider refused: {}", answer.to_string().escape_debug()))
        }
        other => Refusal::Unavailable(anyhow!(other)),
    }
}
