//! The command's UDP flows. To open a flow, the supervisor sends a datagram that contains only a block, which the
//! verifier consumes (wire.md §4.2). It sends this datagram on the program's own socket, before the program's first
//! datagram. The supervisor does not see answers, and the block can be lost. So it repeats the block a few times in the
//! first seconds, and then as often as wire.md requires.

use super::target;
use nix::sys::socket::SockaddrStorage;
use reach::Session;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pauses before the repetitions of a block. Each pause begins when the block was last sent.
const REPEATS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];
/// Maximum time between two tokens of a flow in use (wire.md §4.1), minus a second for the time in transit.
const EVERY: Duration = Duration::from_secs(14);
/// Maximum number of flows whose blocks are repeated.
const FLOWS_MAX: usize = 4096;

/// Key of a flow: the identity of its socket, and the destination.
type Key = (u64, SocketAddr);

struct Flow {
    process: i32,
    descriptor: u64,
    address: SockaddrStorage,
    /// Whether the program has connected the socket. The supervisor does not see later datagrams of a connected socket.
    connected: bool,
    sent: Instant,
    repeats: usize,
}

impl Flow {
    /// Returns when the block has to be sent again; `None` if the program's next datagram decides that.
    fn due(&self) -> Option<Instant> {
        match REPEATS.get(self.repeats) {
            Some(after) => Some(self.sent + *after),
            None => self.connected.then(|| self.sent + EVERY),
        }
    }
}

/// The command's UDP flows.
#[derive(Default)]
pub struct Flows {
    flows: Mutex<BTreeMap<Key, Flow>>,
    changed: Condvar,
}

impl Flows {
    /// Sends a block to `address` on a program's socket. Sends none if the address needs no token, or if the socket is
    /// not connected and has sent a block there in the last 14 s. If this succeeds, the caller lets the program send
    /// its datagram.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant.
    pub fn open(
        &self,
        session: &Session,
        socket: BorrowedFd<'_>,
        (thread, descriptor): (i32, u64),
        address: &target::Address,
        connected: bool,
    ) -> Result<(), reach::Error> {
        let failed = |source| reach::Error::Io { to: address.to, source };
        let key = (target::identity(socket).map_err(failed)?, address.to);
        if !connected && self.lock().get(&key).is_some_and(|flow| flow.sent.elapsed() < EVERY) {
            return Ok(());
        }
        let Some(block) = session.datagram_block(address.to)? else { return Ok(()) };
        // If the socket's queue is full, the program will notice that at its own datagram.
        let _ = target::send(socket, &block, (!connected).then_some(&address.raw));
        let process = target::process_of(thread).unwrap_or(thread);
        let flow = Flow { process, descriptor, address: address.raw, connected, sent: Instant::now(), repeats: 0 };
        let mut flows = self.lock();
        if flows.len() >= FLOWS_MAX && !flows.contains_key(&key) {
            flows.retain(|_, flow| flow.due().is_some());
        }
        if flows.len() < FLOWS_MAX {
            flows.insert(key, flow);
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Repeats blocks when they are due. Never returns.
    pub fn look_after(&self, session: &Session) {
        let mut flows = self.lock();
        loop {
            let now = Instant::now();
            let due: Vec<Key> =
                flows.iter().filter(|(_, flow)| flow.due().is_some_and(|at| at <= now)).map(|(key, _)| *key).collect();
            let gone = |flow: &Flow| flow.due().is_none() && flow.sent.elapsed() > 4 * EVERY;
            flows.retain(|_, flow| !gone(flow));
            if due.is_empty() {
                let pause =
                    flows.values().filter_map(Flow::due).min().map_or(EVERY, |at| at.saturating_duration_since(now));
                flows = self.changed.wait_timeout(flows, pause).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            for key in due {
                let Some(flow) = flows.get_mut(&key) else { continue };
                (flow.sent, flow.repeats) = (now, flow.repeats + 1);
                let (process, descriptor, connected, address) =
                    (flow.process, flow.descriptor, flow.connected, flow.address);
                drop(flows);
                let lives = repeat(session, key, (process, descriptor), (!connected).then_some(&address));
                flows = self.lock();
                if !lives {
                    flows.remove(&key);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Flow>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the block of a flow again. Returns whether the flow's socket still exists. The supervisor keeps no copy of the
/// socket, because a program that closes a socket expects its port to be free.
fn repeat(
    session: &Session,
    (identity, to): Key,
    (process, descriptor): (i32, u64),
    address: Option<&SockaddrStorage>,
) -> bool {
    let Ok(socket) = target::socket(process, descriptor) else { return false };
    if !target::identity(socket.as_fd()).is_ok_and(|own| own == identity) {
        return false;
    }
    match session.datagram_block(to) {
        Ok(Some(block)) => {
            let _ = target::send(socket.as_fd(), &block, address);
            true
        }
        Ok(None) => false,
        Err(error) => {
            tracing::debug!("{to}: {error}");
            true
        }
    }
}
