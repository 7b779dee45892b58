//! An identity provider for tests, which speaks HTTP on loopback. The test sets its answers, including wrong ones.

use authority::now;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openidconnect::PrivateSigningKey;
use openidconnect::core::{CoreEdDsaPrivateSigningKey, CoreHmacKey, CoreJwsSigningAlgorithm};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub const CLIENT: &str = "vouchsafe";
pub const LOGOUT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// The identity provider.
pub struct Provider {
    pub issuer: String,
    pub says: Arc<Mutex<Says>>,
}

/// The state that determines the provider's answers.
#[derive(Default)]
pub struct Says {
    /// The ID token that the provider sends. Without one, it refuses.
    pub id_token: Option<String>,
    /// The forms posted to the token endpoint, latest first.
    pub asked: Vec<HashMap<String, String>>,
    /// Whether a device code is still waiting to be entered.
    pub pending: bool,
    jwks: Value,
}

/// A signing key.
pub struct Key(CoreEdDsaPrivateSigningKey);

impl Key {
    /// Generates a key, for the provider or for another party.
    pub fn new() -> Self {
        Self::of(&rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem())
    }

    /// Loads the key of a PEM file.
    pub fn of(pem: &str) -> Self {
        Self(CoreEdDsaPrivateSigningKey::from_ed25519_pem(pem, None).unwrap())
    }

    /// Signs a token with this header and these claims.
    pub fn sign(&self, head: Value, claims: &Map<String, Value>) -> String {
        let encode = |value: &str| URL_SAFE_NO_PAD.encode(value);
        let signed = format!("{}.{}", encode(&head.to_string()), encode(&json!(claims).to_string()));
        let signature = self.0.sign(&CoreJwsSigningAlgorithm::EdDsa, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Signs a token with a shared secret, as the HS256 algorithm requires.
    pub fn symmetric(secret: &str, claims: &Map<String, Value>) -> String {
        let head = json!({ "alg": "HS256", "typ": "JWT" });
        let signed = [head, json!(claims)].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let key = CoreHmacKey::new(secret);
        let signature = key.sign(&CoreJwsSigningAlgorithm::HmacSha256, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Signs an ordinary token.
    pub fn token(&self, claims: &Map<String, Value>) -> String {
        self.sign(json!({ "alg": "EdDSA", "typ": "JWT" }), claims)
    }
}

impl Provider {
    /// Starts a provider that publishes `key`.
    pub async fn start(key: &Key) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let jwks = json!({ "keys": [serde_json::to_value(key.0.as_verification_key()).unwrap()] });
        let says = Arc::new(Mutex::new(Says { jwks, ..Says::default() }));
        let about = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"),
            "device_authorization_endpoint": format!("{issuer}/device"),
            "jwks_uri": format!("{issuer}/jwks"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "scopes_supported": ["openid", "email", "groups"],
            "id_token_signing_alg_values_supported": ["EdDSA", "HS256", "none"],
        });
        let device = json!({
            "device_code": "the device code", "user_code": "ABCD", "expires_in": 60, "interval": 1,
            "verification_uri": format!("{issuer}/enter"),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(move || async move { Json(about) }))
            .route("/jwks", get(async |State(says): State<Arc<Mutex<Says>>>| Json(says.lock().unwrap().jwks.clone())))
            .route("/device", post(move || async move { Json(device) }))
            .route("/token", post(token))
            .with_state(says.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { issuer, says }
    }

    /// Returns the lines of authority.toml that configure this provider.
    pub fn configuration(&self, more: &str) -> String {
        format!("oidc = {{ issuer = \"{}\", client_id = \"{CLIENT}\"{more} }}\n", self.issuer)
    }

    /// Returns valid claims about carol for an ID token with this nonce.
    pub fn claims(&self, nonce: Option<&str>, groups: &[&str]) -> Map<String, Value> {
        let claims = json!({
            "iss": self.issuer, "aud": [CLIENT], "sub": "c-1", "email": "carol@example.org", "email_verified": true,
            "iat": now(), "exp": now() + 60, "groups": groups, "sid": "s-1",
        });
        let mut claims = claims.as_object().unwrap().clone();
        nonce.map(|nonce| claims.insert("nonce".into(), nonce.into()));
        claims
    }

    /// Makes the provider give this ID token to every client from now on.
    pub fn gives(&self, id_token: String) {
        self.says.lock().unwrap().id_token = Some(id_token);
    }

    /// Makes the provider refuse every client from now on.
    pub fn refuses(&self) {
        self.says.lock().unwrap().id_token = None;
    }

    /// Makes the provider publish another key from now on.
    pub fn publishes(&self, key: &Key) {
        let key = serde_json::to_value(key.0.as_verification_key()).unwrap();
        self.says.lock().unwrap().jwks = json!({ "keys": [key] });
    }
}

async fn token(
    State(says): State<Arc<Mutex<Says>>>,
    Form(asked): Form<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    let mut says = says.lock().unwrap();
    let device = asked.contains_key("device_code");
    says.asked.insert(0, asked);
    match &says.id_token {
        _ if device && says.pending => (StatusCode::BAD_REQUEST, Json(json!({ "error": "authorization_pending" }))),
        None => (StatusCode::BAD_REQUEST, Json(json!({ "error": "invalid_grant" }))),
        Some(id_token) => {
            let tokens = json!({
                "access_token": "an access token", "token_type": "Bearer", "refresh_token": "a refresh token",
                "id_token": id_token,
            });
            (StatusCode::OK, Json(tokens))
        }
    }
}
