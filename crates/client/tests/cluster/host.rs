//! A server that answers as an authority does, and fails as tests demand. The real authority can't be made to accept a
//! request and stay silent, or to break off.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// A certificate authority.
pub struct Ca {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn config(&self) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap()
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.config()))
    }
}

/// A server that offers the same protocols as an authority, and closes each connection after the handshake.
pub struct Porter {
    pub url: String,
    agreed: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Porter {
    pub async fn start(ca: &Ca) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut config = ca.config();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let agreed = Arc::<Mutex<Vec<String>>>::default();
        let noted = agreed.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let protocol = stream.get_ref().1.alpn_protocol().unwrap_or_default();
                noted.lock().unwrap().push(String::from_utf8_lossy(protocol).into_owned());
            }
        });
        Self { url, agreed, serving }
    }

    /// Returns the protocols of the connections that were opened since the last call.
    pub fn agreed(&self) -> Vec<String> {
        std::mem::take(&mut *self.agreed.lock().unwrap())
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// How a host treats requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Answers,
    /// It reads requests and does not answer them.
    Silent,
    /// It answers what changes nothing, and breaks off otherwise.
    BreaksOff,
    /// It has lost the cluster's majority.
    Unable,
    /// It does not know any token.
    KnowsNobody,
    /// It does not know any segment.
    IssuedNothing,
}

struct State {
    mode: Mode,
    members: Vec<String>,
    /// The method, the path and the token of each request.
    requests: Vec<(String, Option<String>)>,
}

pub struct Host {
    pub url: String,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<String>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Host {
    pub async fn start(ca: &Ca) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = Self {
            url: format!("https://{address}"),
            address,
            acceptor: ca.acceptor(),
            state: Arc::new(Mutex::new(State { mode: Mode::Answers, members: Vec::new(), requests: Vec::new() })),
            events: broadcast::Sender::new(16),
            serving: Mutex::new(None),
        };
        host.serve(listener);
        host
    }

    fn serve(&self, listener: TcpListener) {
        let (acceptor, state, events) = (self.acceptor.clone(), self.state.clone(), self.events.clone());
        let serving = tokio::spawn(async move {
            // Aborting this task also aborts the tasks in the set.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, acceptor.clone(), state.clone(), events.clone()));
            }
        });
        *self.serving.lock().unwrap() = Some(serving);
    }

    /// Closes the listener and all connections.
    pub async fn kill(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(serving) = serving {
            serving.abort();
            let _ = serving.await;
        }
    }

    pub async fn revive(&self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(listener);
    }

    pub fn set(&self, mode: Mode) {
        self.state.lock().unwrap().mode = mode;
    }

    pub fn set_members(&self, members: &[&Host]) {
        self.state.lock().unwrap().members = members.iter().map(|host| host.url.clone()).collect();
    }

    /// Lets the host name these URLs as the members of its cluster.
    pub fn set_urls(&self, urls: &[String]) {
        self.state.lock().unwrap().members = urls.to_vec();
    }

    pub fn push(&self, event: &str) {
        let _ = self.events.send(event.to_owned());
    }

    /// Returns how many requests with this method and path arrived.
    pub fn count(&self, request: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|(one, _)| one == request).count()
    }

    /// Returns the tokens that arrived.
    pub fn tokens(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.iter().filter_map(|(_, token)| token.clone()).collect()
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<String>,
) -> Option<()> {
    let mut stream = BufStream::new(acceptor.accept(stream).await.ok()?);
    loop {
        let (mut head, mut length, mut token) = (String::new(), 0, None);
        stream.read_line(&mut head).await.ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().ok()?,
                "authorization" => token = Some(value.trim_start_matches("Bearer ").to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let request = head.rsplit_once(' ')?.0.split('?').next()?.to_owned();
        let (mode, members) = {
            let mut state = state.lock().unwrap();
            state.requests.push((request.clone(), token.clone()));
            (state.mode, state.members.clone())
        };
        let problem =
            |status: u16, kind: &str| (status, format!(r#"{{"type":"{kind}","title":"x","status":{status}}}"#));
        let members = members.iter().map(|url| format!("{url:?}")).collect::<Vec<_>>().join(",");
        let (status, body) = match (mode, request.as_str()) {
            (Mode::Silent, _) => {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                return None;
            }
            (Mode::BreaksOff, request) if request.starts_with("POST") => return None,
            (Mode::Unable, _) => problem(503, "no_majority"),
            (Mode::KnowsNobody, _) if token.is_some() => problem(401, "not_logged_in"),
            (Mode::IssuedNothing, "POST /v1/segments/answer") => problem(404, "unknown_segment"),
            (_, "GET /v1/events") => {
                return stream_events(&mut stream, events.subscribe()).await;
            }
            (_, "GET /v1/destinations") => (200, format!(r#"{{"destinations":[],"authorities":[{members}],"now":1}}"#)),
            (_, "POST /v1/login") => {
                (200, r#"{"token":"t","person":"alice","device":"laptop","expires":9,"now":1}"#.to_owned())
            }
            (_, "POST /v1/segments/line") => {
                let key = "07".repeat(32);
                (200, format!(r#"{{"port":9,"line":"0123456789abcdef","key":"{key}","expires":9,"now":1}}"#))
            }
            _ => (200, String::new()),
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

async fn stream_events(
    stream: &mut (impl AsyncWriteExt + Unpin),
    mut events: broadcast::Receiver<String>,
) -> Option<()> {
    stream.write_all(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n").await.ok()?;
    let mut event = r#"{"event":"hello"}"#.to_owned();
    loop {
        stream.write_all(format!("data: {event}\n\n").as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        event = events.recv().await.ok()?;
    }
}
