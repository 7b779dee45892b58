//! Starts and ends the exchange of flows with other gateways.

use super::{Peers, receiver, sender};
use crate::shared::Shared;
use anyhow::{Context, Result};
use datapath::ring::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wire::map::FlowNews;

/// Number of flows queued for each peer. A flow that finds the queue full is advertised in the next pass over all
/// flows.
const QUEUE: usize = 16 * 1024;

/// The tasks of the exchange, which end when this value is dropped.
pub struct Running {
    tasks: Vec<JoinHandle<()>>,
    _flows: Listener,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Opens the listener for other gateways.
///
/// # Errors
///
/// Fails if the address is in use or is not this host's.
pub async fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("peer_listen: cannot listen on {at}"))
}

/// Starts to advertise flows to the peers, and to take over the flows that they advertise. The exchange ends when the
/// returned value is dropped.
///
/// # Errors
///
/// Fails if the kernel program's messages about flows can't be read.
pub fn start(peers: &Arc<Peers>, listener: TcpListener, shared: &Arc<Shared>) -> Result<Running> {
    let mut tasks = vec![tokio::spawn(receiver::serve(listener, peers.clone(), shared.clone()))];
    let mut rooms = Vec::new();
    for index in 0..peers.senders.len() {
        let (room, news) = mpsc::channel(QUEUE);
        rooms.push(room);
        tasks.push(tokio::spawn(sender::keep(peers.clone(), shared.clone(), index, news)));
    }
    let each = move |news: FlowNews| {
        for room in &rooms {
            let _ = room.try_send(news);
        }
    };
    let flows = shared.kernel().listen_to_flows(each)?;
    Ok(Running { tasks, _flows: flows })
}
