//! The certificates that the client trusts, and the protocols that it offers. `ring` is the only cryptographic
//! provider.

use crate::Error;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::Arc;

/// The system's certificates, unless `SSL_CERT_FILE` names another file.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Returns a configuration that trusts only the certificates in `ca_pem`. If `ca_pem` is `None`, the configuration
/// trusts the system's certificates.
///
/// # Errors
///
/// Fails if a certificate can't be read, or if there is none to trust.
pub fn config(ca_pem: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let added = certificate.map_err(|error| error.to_string());
                let added = added.and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
                added.map_err(|error| Error::Other(format!("cannot read the CA certificate: {error}")))?;
            }
        }
        None => {
            let file = std::env::var("SSL_CERT_FILE").unwrap_or_else(|_| SYSTEM_CERTIFICATES.into());
            let pem = std::fs::read(&file).map_err(|error| Error::Other(format!("cannot read {file}: {error}")))?;
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        }
    }
    if roots.is_empty() {
        return Err(Error::Other("no CA certificate to trust: name the authority's ca.pem with `--ca`".into()));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Other(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the same configuration for connections that only offer HTTP/1.1. Both configurations share the sessions that
/// TLS can resume.
pub fn only_http1(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}
