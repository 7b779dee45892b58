//! A TCP server with a thread for each connection.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket;

/// A running server. Dropping it closes the listener and every connection.
pub struct Acceptor {
    listener: Arc<TcpListener>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Accepts connections, and calls `serve` for each in a thread of its own. The connection is closed when `serve`
    /// returns. When the server is dropped, reads and writes of `serve` fail or end, and it has to return.
    pub fn start(listener: TcpListener, serve: impl Fn(&TcpStream, SocketAddr) + Send + Sync + 'static) -> Self {
        let (listener, end) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (listener, end, serve) = (listener.clone(), end.clone(), Arc::new(serve));
            move || accept(&listener, &end, &serve)
        });
        Self { listener, end, thread: Some(thread) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.end.store(true, SeqCst);
        // Then accept(2) fails, also a call that waits.
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept<S: Fn(&TcpStream, SocketAddr) + Send + Sync + 'static>(
    listener: &TcpListener,
    end: &AtomicBool,
    serve: &Arc<S>,
) {
    // Only the thread of a connection owns its stream, so that it is closed when the thread ends.
    let mut open: Vec<(Weak<TcpStream>, JoinHandle<()>)> = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let (stream, serve) = (Arc::new(stream), serve.clone());
                open.retain(|(_, thread)| !thread.is_finished());
                open.push((Arc::downgrade(&stream), thread::spawn(move || serve(&stream, peer))));
            }
            Err(_) if end.load(SeqCst) => break,
            // A connection has ended before it was accepted, or there are too many open files.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    for stream in open.iter().filter_map(|(stream, _)| stream.upgrade()) {
        let _ = stream.shutdown(Shutdown::Both);
    }
    open.into_iter().for_each(|(_, thread)| drop(thread.join()));
}
