//! `vouchsafe proxy`: SOCKS5 (RFC 1928) and HTTP CONNECT (RFC 9110, §9.3.6) on one port of this machine's loopback
//! address.
//!
//! A client of the proxy uses this user's grants, so the proxy serves only processes of this user. The kernel tells
//! which user opened each connection.

mod greeting;
mod peer;

use crate::at::Using;
use crate::copy;
use anyhow::{Context, Result, ensure};
use clap::Args;
use greeting::{ProxyRequest, Verdict};
use nix::unistd::Uid;
use reach::{Error, Session, Timeouts};
use shell::println;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum time for a client to say where it wants to connect.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of concurrent connections.
const CONNECTIONS_MAX: usize = 1024;
/// Size of the stack of a thread that only copies, in bytes.
const STACK: usize = 256 * 1024;

/// Serve as a proxy
#[derive(Args, Debug)]
pub struct ProxyArguments {
    #[command(flatten)]
    using: Using,
    /// Loopback address and port to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:1080")]
    listen: SocketAddr,
    /// Time to wait for a connection to each address, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
}

/// Runs the proxy until its process is ended. Returns exit code 1 if the user is not logged in.
///
/// # Errors
///
/// Fails if the session can't be opened, if the address of `--listen` is not a loopback address, or if the proxy can't
/// listen on it.
pub fn run(arguments: &ProxyArguments) -> Result<ExitCode> {
    ensure!(
        arguments.listen.ip().is_loopback(),
        "--listen {}: other machines could use your grants there; use a loopback address such as 127.0.0.1:1080",
        arguments.listen
    );
    let session = match Session::open(&arguments.using.places()?) {
        Ok(session) => session,
        Err(error @ Error::NotLoggedIn) => {
            eprintln!("vouchsafe: {error}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    session.follow()?;
    let listener = TcpListener::bind(arguments.listen);
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("listening on {}: SOCKS5 and HTTP CONNECT, for your own programs", listener.local_addr()?);
    let open = Arc::new(AtomicUsize::new(0));
    let timeouts = Timeouts { connect: Duration::from_secs(arguments.wait) };
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                // Usually the process has too many open descriptors; connections that end will release some.
                tracing::warn!("cannot accept a connection: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(permit) = ConnectionPermit::take(&open) else {
            tracing::warn!("{CONNECTIONS_MAX} connections are open, the maximum: closed a new connection");
            continue;
        };
        let session = session.clone();
        let serve = move || {
            let _place = permit;
            if let Err(error) = serve(client, &session, timeouts) {
                tracing::debug!("{error:#}");
            }
        };
        if let Err(error) = std::thread::Builder::new().stack_size(STACK).spawn(serve) {
            tracing::warn!("cannot start a thread for a connection: {error}");
        }
    }
}

/// One of the connections that may be open at the same time; released on drop.
struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let permit = Self(open.clone());
        (open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(mut client: TcpStream, session: &Session, timeouts: Timeouts) -> Result<()> {
    let (peer, own) = (client.peer_addr()?, client.local_addr()?);
    let user = peer::user_of(peer, own).context("cannot find out which user opened the connection")?;
    if user != Uid::effective() {
        tracing::warn!(uid = user.as_raw(), "refused a connection of another user");
        return Ok(());
    }
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let Some(ProxyRequest { host, port, form }) = greeting::read(&mut client)? else { return Ok(()) };
    let host_stream = match session.connect(&host, port, timeouts) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::info!("{host}:{port}: {error}");
            return Ok(client.write_all(&form.answer(&verdict(&error), &error.to_string()))?);
        }
    };
    client.write_all(&form.answer(&Verdict::Connected, ""))?;
    client.set_read_timeout(None)?;
    client.set_write_timeout(None)?;
    for stream in [&client, &host_stream] {
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_host) = (client.try_clone()?, host_stream.try_clone()?);
    let up = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let copied = copy::all(from_client.as_fd(), to_host.as_fd());
        let _ = to_host.shutdown(if copied.is_ok() { Shutdown::Write } else { Shutdown::Both });
    })?;
    let copied = copy::all(host_stream.as_fd(), client.as_fd());
    let _ = client.shutdown(if copied.is_ok() { Shutdown::Write } else { Shutdown::Both });
    let _ = up.join();
    Ok(())
}

fn verdict(error: &Error) -> Verdict {
    match error {
        Error::NotLoggedIn | Error::Denied { .. } | Error::NoGrant { .. } => Verdict::Forbidden,
        Error::NoAddress { .. } => Verdict::NoHost,
        Error::Silence { .. } => Verdict::Silence,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused => Verdict::Refused,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => Verdict::Silence,
        _ => Verdict::Failed,
    }
}
