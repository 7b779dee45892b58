//! TLS with switches. The agent presents a certificate from a file; switches present certificates of a configured CA.

use anyhow::{Context, Result, bail, ensure};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum duration of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;

/// The files for TLS with switches.
#[derive(Clone, Debug)]
pub struct Files {
    /// The agent's certificate and its intermediate certificates, up to a CA that the switches trust.
    pub certificate: PathBuf,
    /// The private key for the certificate.
    pub key: PathBuf,
    /// The CA that signs the certificates of switches.
    pub ca: PathBuf,
}

impl Files {
    /// Combines the three settings for TLS. Returns `None` if none of the three is present.
    ///
    /// # Errors
    ///
    /// Fails if some of them are present, but not all.
    pub fn all(certificate: Option<PathBuf>, key: Option<PathBuf>, ca: Option<PathBuf>) -> Result<Option<Self>> {
        match (certificate, key, ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(ca)) => Ok(Some(Self { certificate, key, ca })),
            _ => bail!(
                "TLS for switches needs switches_certificate, switches_key and switches_ca: set all three or none"
            ),
        }
    }

    /// Reads the files, and returns the acceptor for connections.
    ///
    /// # Errors
    ///
    /// Fails if a file can't be read, or if it does not contain the certificates or the key.
    pub fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.with_context(|| format!("cannot read the key {}", self.key.display()))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots
                .add(certificate)
                .with_context(|| format!("cannot trust a certificate in {} as a CA", self.ca.display()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .with_context(|| {
                format!("cannot use the certificate {} with the key {}", self.certificate.display(), self.key.display())
            })?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Performs the handshake with a switch that has just connected.
///
/// # Errors
///
/// Fails if the switch does not begin with a TLS handshake, if the agent and the switch do not accept each other's
/// certificates, or if the handshake takes more than five seconds.
pub async fn accept(acceptor: &TlsAcceptor, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
    let handshake = async {
        let mut first = [0];
        ensure!(stream.peek(&mut first).await? == 1, "the switch disconnected before it sent anything");
        ensure!(
            first == [HANDSHAKE],
            "the switch uses OpenFlow without TLS, but this address accepts TLS only: set the controller to `ssl:…` \
            on the switch and give it a certificate (`ovs-vsctl set-ssl`)"
        );
        acceptor.accept(stream).await.context("the TLS handshake failed")
    };
    tokio::time::timeout(HANDSHAKE_TIME, handshake)
        .await
        .with_context(|| format!("the switch did not complete the TLS handshake within {HANDSHAKE_TIME:?}"))?
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let list = read.with_context(|| format!("cannot read the certificate {}", file.display()))?;
    ensure!(!list.is_empty(), "{} contains no certificate", file.display());
    Ok(list)
}
