//! TLS: the certificates that `init` creates, and the TLS configurations of server and clients. `ring` is the only
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
    /// Fails if a name is neither a DNS name nor an address.
    pub fn new(names: &[String], now: u64) -> Result<Self> {
        let ca_params = ca_params(now)?;
        let ca_key = KeyPair::generate()?;
        let ca = ca_params.self_signed(&ca_key)?;
        let ca_key_pem = Zeroizing::new(ca_key.serialize_pem());
        let (server, server_key) = server_certificate(names, now, &Issuer::new(ca_params, ca_key))?;
        Ok(Self { ca: ca.pem(), ca_key: ca_key_pem, server, server_key })
    }
}

/// Returns the name, the period and the purpose of the CA's certificate.
fn ca_params(now: u64) -> Result<CertificateParams> {
    let mut params = valid(CertificateParams::default(), "Vouchsafe authority CA", now)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn valid(mut params: CertificateParams, name: &str, now: u64) -> Result<CertificateParams> {
    let year = 1970 + i32::try_from(now / 31_556_952)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + YEARS, 1, 1);
    Ok(params)
}

/// Makes a server certificate for `names` and its key, in PEM.
fn server_certificate(names: &[String], now: u64, ca: &Issuer<'_, KeyPair>) -> Result<(String, Zeroizing<String>)> {
    let params = CertificateParams::new(names).context("each name of a host must be a DNS name or an address")?;
    let mut params = valid(params, "Vouchsafe authority", now)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, ca)?.pem(), Zeroizing::new(key.serialize_pem())))
}

/// Returns a certificate for another member of the cluster and its private key, in PEM. The CA in the authority's
/// directory at `path` signs the certificate. `now` is in Unix seconds.
///
/// # Errors
/// Fails if the CA's key is not in the directory or does not belong to `ca.pem`, or a name is neither a DNS name nor an
/// address.
pub fn member_certificate(path: &Path, names: &[String], now: u64) -> Result<(String, Zeroizing<String>)> {
    let (ca, ca_key) = (path.join("ca.pem"), path.join("ca.key"));
    let pem = std::fs::read_to_string(&ca_key).map(Zeroizing::new).with_context(|| {
        format!(
            "cannot read {}, the key that signs the certificates of members: put the key back for this command",
            ca_key.display()
        )
    })?;
    let key = KeyPair::from_pem(&pem).with_context(|| format!("{} is malformed", ca_key.display()))?;
    let certificate = der(&std::fs::read(&ca).with_context(|| format!("cannot read {}", ca.display()))?)?;
    let public = key.public_key_raw();
    anyhow::ensure!(
        certificate.windows(public.len()).any(|part| part == public),
        "the key {} does not belong to the certificate {}: clients would not trust a certificate that this key signs",
        ca_key.display(),
        ca.display()
    );
    // The certificate names its issuer as `init` named the CA.
    server_certificate(names, now, &Issuer::new(ca_params(now)?, key))
}

/// Returns the SHA-256 of a PEM certificate's DER form, in colon-separated hex. People compare this fingerprint.
///
/// # Errors
/// Fails if `pem` contains no certificate.
pub fn fingerprint(pem: &[u8]) -> Result<String> {
    let pairs: Vec<_> = Sha256::digest(der(pem)?).iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(pairs.join(":"))
}

/// Returns the DER form of the first certificate in a PEM text.
///
/// # Errors
/// Fails if `pem` contains no certificate.
pub fn der(pem: &[u8]) -> Result<Vec<u8>> {
    Ok(CertificateDer::from_pem_slice(pem).context("the text contains no certificate in PEM form")?.to_vec())
}

/// Returns the server's TLS configuration: TLS 1.2 and 1.3, HTTP/2 preferred over HTTP/1.1.
///
/// # Errors
/// Fails if the certificate or the key cannot be read, or they do not belong together.
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
/// Returns the TLS configuration for outgoing connections. It trusts only the certificates in `ca_pem` or, if `ca_pem`
/// is `None`, the certificates of the system.
///
/// # Errors
/// Fails if a certificate in `ca_pem` is malformed, or `ca_pem` contains none.
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
