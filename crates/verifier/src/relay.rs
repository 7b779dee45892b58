//! Relays connections to chosen services behind a gateway. Sends a header of the PROXY protocol at the beginning of
//! each connection, from which the service learns the person.
//!
//! The kernel cannot insert a header into a TCP stream without renumbering the stream. So the client's connection ends
//! at the gateway, and the gateway opens a connection of its own to the service. Packets from outside never reach these
//! services directly, because a client could then send a forged header.

mod diversion;
mod header;
mod open;

use crate::identity::{Answer, Connection, find, owner};
use crate::settings::Settings;
use crate::shared::Shared;
use anyhow::{Context, Result, bail, ensure};
use datapath::transparent;
use diversion::Diversions;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepIdle, TcpKeepInterval};
use open::{Guest, Open, OpenConnection};
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use wire::packet::TCP;

/// Time for a service to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Size of the buffer for each direction of a connection, in bytes.
const BUFFER: usize = 16 * 1024;
/// Silence after which the kernel probes whether a peer still exists, and interval of these probes, in seconds.
const PROBES: (u32, u32) = (60, 20);
/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The relay's listeners, which accept connections in place of the services, and the rules that divert connections to
/// them.
pub struct Listeners(Vec<(SocketAddr, std::net::TcpListener)>, Diversions);

/// Diverts connections from outside to the services in the settings, and listens in place of these services. Must be
/// called before any flow is admitted. If the settings name no services, removes the diversions of an earlier process.
///
/// # Errors
///
/// Fails if the settings don't fit together, or if the kernel refuses a rule or a listener.
pub fn prepare(settings: &Settings, instance: &str) -> Result<Listeners> {
    let services = &settings.proxy_protocol;
    if !services.is_empty() {
        ensure!(!settings.inside.is_empty(), "`proxy_protocol` requires a gateway: set `inside`");
        ensure!(
            !settings.interfaces.is_empty(),
            "`proxy_protocol` requires `interface`: name the interfaces that lead outside"
        );
        ensure!(
            settings.pool.is_empty(),
            "`proxy_protocol` and `pool` exclude each other: the service learns the person from the header"
        );
        ensure!(
            !settings.observe,
            "`observe` and `proxy_protocol` exclude each other: with `observe`, every connection passes, but the relay \
             refuses connections of unknown people"
        );
    }
    let listen = |service: &SocketAddr| Ok((*service, transparent::listen(*service)?));
    let listeners = services.iter().map(listen).collect::<Result<_>>()?;
    Ok(Listeners(listeners, Diversions::set(settings, instance)?))
}

/// Relays connections until the future is dropped.
pub async fn serve(listeners: Listeners, shared: Arc<Shared>) {
    if listeners.0.is_empty() {
        return;
    }
    make_room();
    let open = Arc::new(Open::default());
    let mut tasks = tokio::task::JoinSet::new();
    for (service, listener) in listeners.0 {
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(tasks.spawn(accept(listener, service, shared.clone(), open.clone()))),
            Err(error) => tracing::error!(%service, "cannot relay connections: {error}"),
        }
    }
    tasks.spawn(open::watch(open, shared));
    tasks.spawn(listeners.1.follow());
    while tasks.join_next().await.is_some() {}
}

/// Raises the process's soft limit on open files to its hard limit, because each relayed connection needs two files.
pub fn make_room() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard), hard));
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

async fn accept(listener: TcpListener, service: SocketAddr, shared: Arc<Shared>, open: Arc<Open>) {
    loop {
        let (client, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually the process is out of file descriptors: connections that end will free some.
                tracing::warn!(%service, "cannot accept a connection to relay: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Some(arrived) = open.arrive(from.ip()) else {
            tracing::warn!(
                %service,
                client = %from,
                "closed a connection: the relay is already looking up the people of too many connections"
            );
            let _ = client.set_zero_linger();
            continue;
        };
        let (shared, open) = (shared.clone(), open.clone());
        tokio::spawn(async move {
            if let Err(error) = relay(client, from, arrived, service, &shared, &open).await {
                tracing::info!(%service, client = %from, "closed a connection: {error:#}");
            }
        });
    }
}

/// Relays one connection. If the connection belongs to a person, and its flow ends or gets another owner before both
/// sides have closed, both sides get a reset.
async fn relay(
    client: TcpStream,
    from: SocketAddr,
    arrived: Guest,
    service: SocketAddr,
    shared: &Arc<Shared>,
    open: &Arc<Open>,
) -> Result<()> {
    client.set_zero_linger()?;
    let connection = Connection { client: from, server: service, protocol: TCP, age: Some(Duration::ZERO) };
    let Some((key, flow)) = find(shared, connection).await? else {
        ensure!(shared.kernel().is_optional(service), "no grant admitted the connection");
        let _place = open.take_stranger(from.ip()).context("strangers have too many connections")?;
        drop(arrived);
        return copy(client, service, &header::anonymous(from, service), pending::<()>()).await;
    };
    let identity = match owner(shared, key, flow).await? {
        Answer::Known(identity) => identity,
        Answer::Nobody => bail!("the connection ended at once"),
        Answer::Unnamed => bail!("the authority does not name the owner of the connection's grant"),
    };
    let OpenConnection { cut, _registered } = open
        .take(&identity.person, key, flow)
        .context("this person, or all people together, have too many connections")?;
    drop(arrived);
    copy(client, service, &header::header(from, service, &identity, flow.since), cut).await
}

/// Connects to the service, sends the header, and copies between the two sides until both have closed, or until `cut`
/// resolves.
async fn copy<T>(
    mut client: TcpStream,
    service: SocketAddr,
    header: &[u8],
    cut: impl Future<Output = T>,
) -> Result<()> {
    let mut server = timeout(CONNECT, TcpStream::connect(service)).await.context("the service does not answer")??;
    server.set_zero_linger()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        setsockopt(stream, KeepAlive, &true)?;
        setsockopt(stream, TcpKeepIdle, &PROBES.0)?;
        setsockopt(stream, TcpKeepInterval, &PROBES.1)?;
    }
    server.write_all(header).await?;
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER) => copied?,
        _ = cut => bail!("the connection's flow has ended, or was revoked"),
    };
    // Both ends have closed: a reset would only discard what is still on its way.
    deliver(&client)?;
    deliver(&server)
}

/// Makes the kernel deliver the bytes that were sent, even after the socket is closed.
fn deliver(stream: &TcpStream) -> Result<()> {
    let none = nix::libc::linger { l_onoff: 0, l_linger: 0 };
    Ok(setsockopt(stream, nix::sys::socket::sockopt::Linger, &none)?)
}
