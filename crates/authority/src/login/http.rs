//! The HTTP client for the identity provider. It requires TLS, follows no redirects, and limits the duration of a call
//! and the size of an answer.

use super::settings::is_confidential;
use crate::tls;
use anyhow::Result;
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Time limits for establishing a connection and for a whole call.
const TIMES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Maximum length of an answer, in bytes.
const MOST_ANSWER: usize = 1024 * 1024;

/// An HTTP client for calls to an identity provider.
#[derive(Clone)]
pub struct Http(reqwest::Client);

/// The reason why a call to an identity provider failed.
#[derive(Debug)]
pub struct Failure(String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        // The URL may contain secrets; the error's causes are informative enough.
        Self(format!("{:#}", anyhow::Error::from(error.without_url())))
    }
}

/// Creates the HTTP client for connections to URLs that the operator configures: those of the identity provider and of
/// webhooks. It trusts the certificates in `ca_pem` or, if it is `None`, the certificates of the system.
///
/// # Errors
/// Fails if a certificate in `ca_pem` is malformed, or `ca_pem` contains none.
pub(crate) fn client(ca_pem: Option<&[u8]>) -> Result<reqwest::Client> {
    // A redirect could lead anywhere in the authority's network.
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let builder = builder.tls_backend_preconfigured(tls::client_config(ca_pem)?);
    Ok(builder.connect_timeout(TIMES.0).timeout(TIMES.1).no_proxy().build()?)
}

impl Http {
    /// Creates a client that trusts the certificates in `ca_pem` or, if it is `None`, the certificates of the system.
    ///
    /// # Errors
    /// Fails if a certificate in `ca_pem` is malformed, or `ca_pem` contains none.
    pub fn new(ca_pem: Option<&[u8]>) -> Result<Self> {
        client(ca_pem).map(Self)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let (parts, body) = request.into_parts();
        let url = reqwest::Url::parse(&parts.uri.to_string()).map_err(|error| Failure(error.to_string()))?;
        if !is_confidential(&url) {
            return Err(Failure("the identity provider's URL does not use TLS".into()));
        }
        let mut response = self.0.request(parts.method, url).headers(parts.headers).body(body).send().await?;
        let mut answer = openidconnect::http::Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            *headers = response.headers().clone();
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MOST_ANSWER {
                return Err(Failure("the identity provider's answer is too long".into()));
            }
            body.extend_from_slice(&chunk);
        }
        answer.body(body).map_err(|error| Failure(error.to_string()))
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, Failure>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}
