//! The client in these tests is rustls with its own buffers.

use super::*;
use crate::tls::{Certificates, server_config};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::{TlsConnector, client};

/// More than the sockets take at once.
const MUCH: usize = 4 << 20;

/// Returns a server's configuration, and that of a client that trusts it and has one version of TLS.
fn configs(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let room = tempfile::tempdir().unwrap();
    let made = Certificates::new(&["localhost".into()], crate::now()).unwrap();
    let [certificate, key] = ["server.pem", "server.key"].map(|name| room.path().join(name));
    std::fs::write(&certificate, &made.server).unwrap();
    std::fs::write(&key, made.server_key.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(made.ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    (server_config(&certificate, &key).unwrap(), Arc::new(client))
}

/// Returns the ends of a TCP connection: that of the server, then that of the client.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (accepted, client) = tokio::join!(listener.accept(), client);
    (accepted.unwrap().0, client.unwrap())
}

/// Returns the ends of a TLS connection, after the handshake over `wrap` of the client's socket.
async fn connected<S: AsyncRead + AsyncWrite + Unpin>(
    version: &'static SupportedProtocolVersion,
    wrap: impl FnOnce(TcpStream) -> S,
) -> (TlsStream, client::TlsStream<S>) {
    let (server, client) = configs(version);
    let (accepted, tcp) = pair().await;
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(client);
    let (server, client) = tokio::join!(TlsStream::accept(accepted, server), connector.connect(name, wrap(tcp)));
    (server.unwrap(), client.unwrap())
}

fn has_no_buffers(stream: &TlsStream) -> bool {
    stream.received.capacity() + stream.decrypted.capacity() + stream.outgoing.capacity() == 0
}

/// Bytes of which no long part occurs twice.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Sends `sent` through one end, and returns what arrives at the other.
async fn through(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin), sent: &[u8]) -> Vec<u8> {
    let mut arrived = vec![0; sent.len()];
    let send = async {
        from.write_all(sent).await.unwrap();
        from.flush().await.unwrap();
    };
    tokio::join!(send, async { to.read_exact(&mut arrived).await.unwrap() });
    arrived
}

#[tokio::test]
async fn bytes_arrive_in_both_directions_and_leave_no_buffers() {
    for version in [&TLS12, &TLS13] {
        let (mut server, mut client) = connected(version, |tcp| tcp).await;
        assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
        assert!(has_no_buffers(&server), "after the handshake");
        for count in [1, 100, READ, MOST_PLAIN, MOST_PLAIN + 1, MUCH] {
            let sent = bytes(count);
            assert!(through(&mut client, &mut server, &sent).await == sent, "{count} bytes to the server");
            assert!(through(&mut server, &mut client, &sent).await == sent, "{count} bytes to the client");
            assert!(has_no_buffers(&server), "after {count} bytes");
        }
    }
}

#[tokio::test]
async fn http_2_comes_first_and_a_client_can_have_http_1() {
    for (offered, agreed) in [(&["http/1.1", "h2"][..], "h2"), (&["http/1.1"][..], "http/1.1")] {
        let (server, mut client) = configs(&TLS13);
        let protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec());
        Arc::make_mut(&mut client).alpn_protocols = protocols.collect();
        let (accepted, tcp) = pair().await;
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = TlsConnector::from(client).connect(name, tcp);
        let (server, _client) = tokio::join!(TlsStream::accept(accepted, server), connecting);
        assert_eq!(server.unwrap().alpn_protocol(), Some(agreed.as_bytes()));
    }
}

#[tokio::test]
async fn several_slices_become_one_record() {
    let (mut server, mut client) = connected(&TLS13, |tcp| tcp).await;
    let (first, second) = (bytes(9), bytes(MOST_PLAIN));
    let slices = [IoSlice::new(&[]), IoSlice::new(&first), IoSlice::new(&second)];
    assert!(server.is_write_vectored());
    assert_eq!(server.write_vectored(&slices).await.unwrap(), MOST_PLAIN);
    let mut arrived = vec![0; MOST_PLAIN];
    client.read_exact(&mut arrived).await.unwrap();
    assert!(arrived[..9] == first && arrived[9..] == second[..MOST_PLAIN - 9]);
}

#[tokio::test]
async fn either_end_can_end_its_direction() {
    for version in [&TLS12, &TLS13] {
        let (mut server, mut client) = connected(version, |tcp| tcp).await;
        client.write_all(b"last").await.unwrap();
        client.shutdown().await.unwrap();
        let mut arrived = Vec::new();
        server.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, b"last");
        server.write_all(b"answer").await.unwrap();
        server.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        assert!(server.write_all(b"more").await.is_err());
    }
}

#[tokio::test]
async fn a_connection_that_breaks_off_is_no_end() {
    let (mut server, mut client) = connected(&TLS13, |tcp| tcp).await;
    // The client reads the tickets of the server, too. Otherwise, its socket would be reset.
    assert_eq!(through(&mut server, &mut client, b"ok").await, b"ok");
    drop(client.into_inner().0);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn the_client_can_change_its_keys() {
    let (mut server, mut client) = connected(&TLS13, |tcp| tcp).await;
    for round in 0..3 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
        let sent = bytes(1000 + round);
        assert_eq!(through(&mut client, &mut server, &sent).await, sent);
        assert_eq!(through(&mut server, &mut client, &sent).await, sent);
    }
    assert!(has_no_buffers(&server));
}

#[tokio::test]
async fn records_may_arrive_byte_by_byte() {
    for version in [&TLS12, &TLS13] {
        let (mut server, mut client) = connected(version, Dribbling).await;
        let sent = bytes(300);
        assert_eq!(through(&mut client, &mut server, &sent).await, sent);
        assert!(has_no_buffers(&server));
    }
}

#[tokio::test]
async fn a_forged_record_ends_the_connection_with_an_alert() {
    let (mut server, mut client) = connected(&TLS13, |tcp| tcp).await;
    assert_eq!(through(&mut server, &mut client, b"ok").await, b"ok");
    let forged = [&[23, 3, 3, 0, 32][..], &[7; 32]].concat();
    client.get_mut().0.write_all(&forged).await.unwrap();
    assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::InvalidData);
    assert!(server.write_all(b"more").await.is_err() && server.read(&mut [0; 8]).await.is_err());
    let told = client.read(&mut [0; 8]).await.unwrap_err().to_string();
    assert!(told.contains("alert"), "{told}");
    // Calls after the failure must do no harm.
    let _ = server.shutdown().await;
}

#[tokio::test]
async fn messages_that_are_too_long_or_malformed_end_the_handshake() {
    let (server, _) = configs(&TLS13);
    let hello = |length: [u8; 3]| {
        let mut record = [&[22, 3, 1, 0x40, 0][..], &[1], &length[..]].concat();
        record.resize(5 + MOST_PLAIN, 0);
        record
    };
    let plain = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec();
    for begins in [hello([0xff, 0xff, 0xff]), hello([0, 0xff, 0xff]), plain, vec![22, 3, 1, 0xff, 0xff]] {
        let (accepted, mut tcp) = pair().await;
        let (mut more, zeros) = ([22, 3, 1, 0x40, 0].to_vec(), [0; MOST_PLAIN]);
        more.extend(zeros);
        // The server possibly closes the connection while the client still sends.
        let flood = async move {
            tcp.write_all(&begins).await?;
            for _ in 0..64 {
                tcp.write_all(&more).await?;
            }
            tcp.shutdown().await
        };
        let (accepted, _) = tokio::join!(TlsStream::accept(accepted, server.clone()), flood);
        assert!(accepted.is_err());
    }
}

#[tokio::test]
async fn a_handshake_that_breaks_off_fails() {
    let (server, _) = configs(&TLS13);
    let (accepted, tcp) = pair().await;
    drop(tcp);
    let failure = TlsStream::accept(accepted, server).await.err().unwrap();
    assert_eq!(failure.kind(), ErrorKind::UnexpectedEof);
}

/// A client's socket that sends single bytes, each in a segment of its own.
struct Dribbling(TcpStream);

impl AsyncRead for Dribbling {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, space)
    }
}

impl AsyncWrite for Dribbling {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.set_nodelay(true)?;
        Pin::new(&mut self.0).poll_write(context, &bytes[..bytes.len().min(1)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
