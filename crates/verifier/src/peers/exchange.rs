//! Starts and ends the exchange with other gateways.

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

/// Flows queued for each peer; a flow that finds the queue full is advertised in the next pass over all flows.
const QUEUE: usize = 16 * 1024;

/// The tasks of the exchange; they end when this is dropped.
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
pub async fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("peer_listen: cannot listen on {at}"))
}

/// Starts advertising flows to the peers and listening to theirs.
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
