//! The certificates of a stage with TLS.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::net::IpAddr;
use std::path::Path;

/// Writes into `folder` a CA, the members' certificate, which is valid for `addresses`, and a client's certificate,
/// each with its key.
pub fn write(folder: &Path, addresses: &[IpAddr]) -> Result<()> {
    let mut ca_params = CertificateParams::default();
    ca_params.distinguished_name.push(DnType::CommonName, "stage CA");
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    std::fs::write(folder.join("ca.pem"), ca_params.self_signed(&ca_key)?.pem())?;
    let issuer = Issuer::new(ca_params, ca_key);

    let names: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    // The JSON gateway connects to its own member with the member's certificate, which therefore has both purposes.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    for (name, names, purposes) in [("server", names, &both[..]), ("client", Vec::new(), &both[1..])] {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        let key = KeyPair::generate()?;
        std::fs::write(folder.join(format!("{name}.pem")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem())?;
    }
    Ok(())
}
