//! TLS: the certificates that `init` creates, and the configurations of server and clients, with `ring` as the only
//! cryptographic provider.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The file with the system's CA certificates, which is used unless `SSL_CERT_FILE` names another.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Lifetime of certificates, in years. Clients pin the CA, so a new CA must be installed on every client.
const YEARS: i32 = 10;

/// The authority's own CA and the server certificate that it signed, in PEM.
pub struct Certificates {
    /// The CA's certificate, which clients trust.
    pub ca: String,
    /// The CA's private key, for signing further certificates. Secret.
    pub ca_key: Zeroizing<String>,
    /// The server's certificate.
    pub server: String,
    /// The server's private key. Secret.
    pub server_key: Zeroizing<String>,
}

impl Certificates {
    /// Creates a CA, and a certificate for a server with these `names` (DNS names or addresses). `now` is in Unix
    /// seconds.
    ///
    /// # Errors
    /// A name is neither a DNS name nor an address.
    pub fn new(names: &[String], now: u64) -> Result<Self> {
        let year = 1970 + i32::try_from(now / 31_556_952)?;
        let valid = |mut params: CertificateParams, name: &str| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
            params.not_after = rcgen::date_time_ymd(year + YEARS, 1, 1);
            params
        };
        let mut ca_params = valid(CertificateParams::default(), "Vouchsafe authority CA");
        ca_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        let ca = ca_params.self_signed(&ca_key)?;

        let params = CertificateParams::new(names).context("each --name must be a DNS name or an address")?;
        let mut params = valid(params, "Vouchsafe authority");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate()?;
        let ca_key_pem = Zeroizing::new(ca_key.serialize_pem());
        let server = params.signed_by(&server_key, &Issuer::new(ca_params, ca_key))?;
        Ok(Self {
            ca: ca.pem(),
            ca_key: ca_key_pem,
            server: server.pem(),
            server_key: Zeroizing::new(server_key.serialize_pem()),
        })
    }
}

/// Returns the SHA-256 of a PEM certificate's DER form in colon-separated hex, which users compare.
///
/// # Errors
/// `pem` contains no certificate.
pub fn fingerprint(pem: &[u8]) -> Result<String> {
    let pairs: Vec<_> = Sha256::digest(der(pem)?).iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(pairs.join(":"))
}

/// Returns the DER form of the first certificate in a PEM text.
///
/// # Errors
/// `pem` contains no certificate.
pub fn der(pem: &[u8]) -> Result<Vec<u8>> {
    Ok(CertificateDer::from_pem_slice(pem).context("the text contains no certificate in PEM form")?.to_vec())
}

/// Returns the server's TLS configuration: TLS 1.2 and 1.3, HTTP/2 preferred over HTTP/1.1.
///
/// # Errors
/// The certificate or the key cannot be read, or they do not belong together.
pub fn server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .with_context(|| format!("cannot read the certificate {}", certificate.display()))?;
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("cannot read the key {}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| {
            format!("cannot use the certificate {} with the key {}", certificate.display(), key.display())
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
/// Returns the TLS configuration for outgoing connections. It trusts only the certificates in `ca_pem` or, if it is
/// `None`, those of the system.
///
/// # Errors
/// A certificate in `ca_pem` is malformed, or `ca_pem` contains none.
pub fn client_config(ca_pem: Option<&[u8]>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.context("cannot read a CA certificate")?)?;
            }
            anyhow::ensure!(!roots.is_empty(), "the CA file contains no certificate");
        }
        None => {
            let file = std::env::var("SSL_CERT_FILE").unwrap_or_else(|_| SYSTEM_CERTIFICATES.into());
            // A missing file is not an error: a host without system certificates can still connect to servers whose CA
            // is configured.
            let pem = std::fs::read(&file).unwrap_or_default();
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
