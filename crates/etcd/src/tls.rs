//! The configuration of TLS. `ring` is the only cryptographic provider.

use crate::types::Settings;
use anyhow::{Context, Result, bail, ensure};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// The system's certificates, unless `SSL_CERT_FILE` names another file.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Returns the configuration for `settings`.
///
/// # Errors
///
/// Fails if a file can't be read or used.
pub fn config(settings: &Settings) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).with_context(|| format!("cannot use a CA certificate in {}", file.display()))?;
            }
        }
        // Without HTTPS there is nothing to trust, and the system's file may be missing.
        None if settings.endpoints.iter().any(|endpoint| endpoint.starts_with("https:")) => {
            let file = std::env::var("SSL_CERT_FILE").unwrap_or_else(|_| SYSTEM_CERTIFICATES.into());
            roots.add_parsable_certificates(certificates(Path::new(&file))?);
            ensure!(!roots.is_empty(), "{file} has no CA certificate: give the one that signs etcd's certificates");
        }
        None => {}
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match (&settings.certificate, &settings.key) {
        (Some(certificate), Some(key)) => {
            let private = PrivateKeyDer::from_pem_file(key)
                .with_context(|| format!("cannot read a private key from {}", key.display()))?;
            builder.with_client_auth_cert(certificates(certificate)?, private).with_context(|| {
                format!("cannot use the certificate {} with the key {} for etcd", certificate.display(), key.display())
            })?
        }
        (None, None) => builder.with_no_client_auth(),
        (Some(_), None) => bail!("etcd's settings have a client certificate, but no key: give both"),
        (None, Some(_)) => bail!("etcd's settings have a client key, but no certificate: give both"),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the certificates of a PEM file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>());
    let certificates = read.with_context(|| format!("cannot read certificates from {}", file.display()))?;
    ensure!(!certificates.is_empty(), "{} contains no certificate", file.display());
    Ok(certificates)
}
