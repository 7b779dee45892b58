//! LS, Figure 5: one to five clients download by HTTPS at the same time. They download directly, through a gateway that
//! only forwards, through IPsec and WireGuard tunnels that end at the gateway, and through a gateway that is a
//! verifier.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Acceptor, Namespace};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::{Cells, Study, missing, start};
use crate::driver::Driver;
use crate::drivers::named;
use crate::measure::suite::{Ends, Plan, Sink};
use crate::measure::way::Way;
use crate::site::{Path, SERVER, SERVER_NEAR};

/// Name of the study of downloads.
pub const NAME: &str = "downloads";
/// Largest number of clients.
const CLIENTS: usize = 5;
/// The server's port. The ports of all measurements are adjacent, so that a policy can name them as a range.
const PORT: u16 = 9004;
/// Time in which TCP and TLS get under way before a download is measured.
const WARM: Duration = Duration::from_millis(300);
/// Name of the table's row for downloads that pass no gateway.
pub const DIRECT: &str = "direct";
/// The other rows of the table: for each, the scenario of the paper, and the solution with which this study repeats the
/// scenario.
pub const THROUGH: [(&str, &str); 5] = [
    ("gateway that forwards", "plain"),
    ("IPsec, user space", "ipsec"),
    ("IPsec, kernel", "ipsec-kernel"),
    ("WireGuard, user space", "wireguard-go"),
    ("Vouchsafe", "vouchsafe-tail"),
];

/// The study of downloads by several clients.
pub struct Downloads;

impl Study for Downloads {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "LS, Figure 5: HTTPS downloads by one to five clients"
    }

    fn transfers(&self, plan: &Plan) -> Duration {
        plan.span * (CLIENTS * (THROUGH.len() + 1)) as u32
    }

    fn run(&self, plan: &Plan, round: u32, ends: Ends<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let mut cells = Cells { study: NAME, round, ends, sink };
        let keys = Keys::new()?;
        for (row, name) in THROUGH {
            let driver = named(&[name.to_owned()])?.pop().context("INVARIANT: one name, one driver")?;
            if missing(driver.as_ref()).is_some() {
                continue;
            }
            cells.part(row, |cells| through(driver.as_ref(), row, plan, &keys, cells))?;
        }
        Ok(())
    }
}

/// Measures one scenario. With the gateway that only forwards, also measures the way without a gateway.
fn through(driver: &dyn Driver, row: &str, plan: &Plan, keys: &Keys, cells: &mut Cells<'_, '_>) -> Result<()> {
    let (mut scene, _services) = start(driver, CLIENTS, Path::Bridge)?;
    let mut ways = Vec::new();
    for number in 1..=CLIENTS {
        scene.turn_to(number)?;
        ways.push(scene.way());
    }
    let server = Server::start(&scene.site.server, keys)?;
    let mut all = |row: &str, address: &str| -> Result<()> {
        for count in 1..=CLIENTS {
            let to = SocketAddrV4::new(address.parse()?, PORT);
            let rate = download(&ways[..count], to, keys, plan.span)?;
            cells.add(row, &count.to_string(), "MB/s for each client", rate)?;
        }
        Ok(())
    };
    all(row, SERVER)?;
    if driver.name() == "plain" {
        scene.site.connect_server()?;
        all(DIRECT, SERVER_NEAR)?;
    }
    drop(server);
    Ok(())
}

/// Has all clients download at the same time; returns the median of their rates in MB/s.
fn download(ways: &[Way], to: SocketAddrV4, keys: &Keys, span: Duration) -> Result<f64> {
    let counters: Vec<AtomicU64> = ways.iter().map(|_| AtomicU64::new(0)).collect();
    let (end, ready) = (AtomicBool::new(false), Barrier::new(ways.len() + 1));
    let fetch = |way: &Way, counter: &AtomicU64| -> Result<()> {
        let opened = open(way, to, keys);
        ready.wait();
        let mut stream = opened?;
        let mut buffer = vec![0; 256 * 1024];
        while !end.load(Relaxed) {
            let size = stream.read(&mut buffer).context("the download broke off")?;
            ensure!(size > 0, "the server ended the download");
            counter.fetch_add(size as u64, Relaxed);
        }
        let _ = stream.sock.shutdown(std::net::Shutdown::Both);
        Ok(())
    };
    thread::scope(|scope| -> Result<f64> {
        let fetch = &fetch;
        let threads: Vec<_> =
            ways.iter().zip(&counters).map(|(way, counter)| scope.spawn(move || fetch(way, counter))).collect();
        ready.wait();
        thread::sleep(WARM);
        let read = || counters.iter().map(|counter| counter.load(Relaxed) as f64).collect::<Vec<_>>();
        let (begun, before) = (Instant::now(), read());
        thread::sleep(span);
        let (after, time) = (read(), begun.elapsed().as_secs_f64());
        end.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))??;
        }
        let rates: Vec<_> = after.iter().zip(&before).map(|(after, before)| (after - before) / 1e6 / time).collect();
        Ok(crate::stats::Summary::of(&rates).context("no client")?.median)
    })
}

/// Opens a download: TCP, TLS 1.3, and the request.
fn open(way: &Way, to: SocketAddrV4, keys: &Keys) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = way.tcp(to).context("cannot connect to the HTTPS server")?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let connection = ClientConnection::new(keys.client.clone(), ServerName::try_from("server")?)?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")?;
    stream.flush()?;
    Ok(stream)
}

/// The configuration of both sides of TLS.
struct Keys {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Keys {
    fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["server".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// An HTTPS server whose only file never ends. Dropping it ends the server.
struct Server {
    _acceptor: Acceptor,
}

impl Server {
    fn start(namespace: &Namespace, keys: &Keys) -> Result<Self> {
        let listener = namespace.enter(|| TcpListener::bind(("0.0.0.0", PORT))).context("cannot start the server")?;
        let config = keys.server.clone();
        Ok(Self { _acceptor: Acceptor::start(listener, move |stream, _| drop(serve(stream, config.clone()))) })
    }
}

fn serve(socket: &TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, socket);
    let mut request = BufReader::new(&mut stream);
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n")?;
    let buffer = vec![0x55; 128 * 1024];
    loop {
        stream.write_all(&buffer)?;
    }
}
