//! Mutual authentication of the gateways of one verifier, which all have the verifier keys. An Ed25519 key derives from
//! the verifier key of each epoch. In the TLS 1.3 handshake, both sides use this key as a raw public key (RFC 7250) and
//! prove that they have it.

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme, version};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use wire::{Epoch, VerifierKey};
use zeroize::Zeroizing;

/// The PKCS#8 header that precedes the 32 bytes of an Ed25519 key (RFC 8410 §7).
const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// The server name that the TLS library requires; neither side checks it.
const NAME: &str = "gateway.invalid";

/// This gateway's own key, and the keys that it accepts from other gateways.
#[derive(Debug)]
pub struct Identity {
    own: Arc<CertifiedKey>,
    known: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

fn certified(key: &VerifierKey, provider: &CryptoProvider) -> Result<CertifiedKey> {
    let seed = key.peer_seed().context("cannot derive the seed of the peer key")?;
    let pkcs8 = Zeroizing::new([&PKCS8_HEAD[..], &seed[..]].concat());
    let signing = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(pkcs8.to_vec()).into())?;
    let public = signing.public_key().context("cannot derive the public key of the peer key")?;
    Ok(CertifiedKey::new(vec![CertificateDer::from(public.as_ref().to_vec())], signing))
}

impl Identity {
    /// Builds an identity from the verifier keys of several epochs. With this identity, the gateway proves that it has
    /// the key of the epoch `current`. From other gateways, it accepts a proof for the key of any of these epochs.
    ///
    /// # Errors
    ///
    /// Fails if there is no key for `current`.
    pub fn new(keys: &[(Epoch, VerifierKey)], current: Epoch) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (mut own, mut known) = (None, Vec::new());
        for (epoch, key) in keys {
            let certified = certified(key, &provider)?;
            known.extend(certified.cert.first().cloned());
            if *epoch == current {
                own = Some(Arc::new(certified));
            }
        }
        let own = own.context("no key for the current epoch, so gateways cannot authenticate each other")?;
        Ok(Self { own, known, provider })
    }

    /// Completes the handshake on an outgoing connection. The other side has to prove that it is a gateway of this
    /// verifier.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks, or if the other side does not prove a key of this verifier.
    pub async fn connect(self: Arc<Self>, stream: TcpStream) -> Result<client::TlsStream<TcpStream>> {
        let resolver: Arc<dyn ResolvesClientCert> = Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.own.clone()));
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self)
            .with_client_cert_resolver(resolver);
        config.enable_sni = false;
        let name = ServerName::try_from(NAME)?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    /// Completes the handshake on an incoming connection. The other side has to prove that it is a gateway of this
    /// verifier.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks, or if the other side does not prove a key of this verifier.
    pub async fn accept(self: Arc<Self>, stream: TcpStream) -> Result<server::TlsStream<TcpStream>> {
        let resolver: Arc<dyn ResolvesServerCert> = Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.own.clone()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(self)
            .with_cert_resolver(resolver);
        // Disable session resumption: each connection must prove a key that is valid now.
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(config)).accept(stream).await?)
    }

    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        let known = self.known.iter().any(|known| known.as_ref() == presented.as_ref());
        known.then_some(()).ok_or_else(|| Error::General("the peer does not have this verifier's keys".into()))
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signature,
            algorithms,
        )
    }
}

const NOT_TLS12: &str = "gateways require TLS 1.3";

/// The methods for verifying signatures, which both traits require in the same form.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General(NOT_TLS12.into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Identity {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Identity {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn identity(epochs: &[u64], current: u64, secret: u8) -> Result<Arc<Identity>> {
        let key = |epoch: &u64| {
            let mut bytes = [secret; 32];
            bytes[..8].copy_from_slice(&epoch.to_be_bytes());
            (Epoch(*epoch), VerifierKey::new(bytes))
        };
        let keys: Vec<_> = epochs.iter().map(key).collect();
        Ok(Arc::new(Identity::new(&keys, Epoch(current))?))
    }

    /// Reports whether data from `one` reaches `other` and comes back.
    async fn speak(one: Arc<Identity>, other: Arc<Identity>) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("an address");
        let saying = async {
            let mut stream = one.connect(TcpStream::connect(to).await?).await?;
            stream.write_all(b"flow").await?;
            let mut received = [0; 4];
            stream.read_exact(&mut received).await?;
            anyhow::Ok(received)
        };
        let hearing = async {
            let mut stream = other.accept(listener.accept().await?.0).await?;
            let mut received = [0; 4];
            stream.read_exact(&mut received).await?;
            stream.write_all(&received).await?;
            anyhow::Ok(())
        };
        let (said, received) = tokio::join!(saying, hearing);
        said.is_ok_and(|echo| &echo == b"flow") && received.is_ok()
    }

    #[tokio::test]
    async fn gateways_that_hold_the_same_keys_speak() {
        let around = [9, 10, 11];
        assert!(speak(identity(&around, 10, 1).expect("a key"), identity(&around, 10, 1).expect("a key")).await);
        // Clocks differ: one gateway is already in the next epoch.
        assert!(speak(identity(&around, 10, 1).expect("a key"), identity(&[10, 11, 12], 11, 1).expect("a key")).await);
    }

    #[tokio::test]
    async fn others_are_refused_on_either_side() {
        let ours = || identity(&[9, 10, 11], 10, 1).expect("a key");
        assert!(!speak(ours(), identity(&[9, 10, 11], 10, 2).expect("a key")).await, "another verifier's keys");
        assert!(!speak(identity(&[9, 10, 11], 10, 2).expect("a key"), ours()).await);
        assert!(!speak(identity(&[5, 6], 6, 1).expect("a key"), ours()).await, "keys of epochs that are over");
    }

    #[test]
    fn without_a_key_of_the_epoch_nobody_speaks() {
        assert!(identity(&[9, 11], 10, 1).is_err() && identity(&[], 10, 1).is_err());
    }
}
