//! Connections that root opens on behalf of another user, who owns their sockets. The kernel programs select tokens by
//! the owner of a socket, so these connections get the tokens of that user.
//!
//! Linux takes a socket's owner from the file-system user id of the thread that opens the socket. The connector changes
//! this id only while it is polled: a poll opens sockets, but no files. Names are resolved in a separate task: threads
//! that the resolver starts during a poll would keep the changed id.

use nix::unistd::Uid;
#[cfg(target_os = "linux")]
use nix::unistd::setfsuid;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A layer for a connector: the user with this id owns the sockets that the connector opens.
#[derive(Clone, Copy)]
pub struct OwnedBy(pub u32);

/// A connector whose sockets a given user owns.
#[derive(Clone)]
pub struct Owned<S> {
    inner: S,
    uid: u32,
}

impl<S> Layer<S> for OwnedBy {
    type Service = Owned<S>;

    fn layer(&self, inner: S) -> Owned<S> {
        Owned { inner, uid: self.0 }
    }
}

impl<S, R> Service<R> for Owned<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (mut connecting, uid) = (Box::pin(self.inner.call(request)), self.uid);
        Box::pin(poll_fn(move |context| match Acting::start(uid) {
            Ok(_acting) => connecting.as_mut().poll(context),
            Err(error) => Poll::Ready(Err(error)),
        }))
    }
}

/// Opens a socket with the function `open`. The socket belongs to the user with the id `uid`; `None` stands for the
/// user of this process.
///
/// # Errors
///
/// Fails if `open` failed, or if this process may not act as that user.
pub fn as_user<T>(uid: Option<u32>, open: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let _acting = uid.map(Acting::start).transpose().map_err(std::io::Error::other)?;
    open()
}

/// Returns an id that belongs to no user, because only Linux has a file-system user id. So the attempt to act as
/// another user fails.
#[cfg(not(target_os = "linux"))]
fn setfsuid(_: Uid) -> Uid {
    Uid::from_raw(u32::MAX)
}

/// A guard; while it exists, the thread opens sockets as another user.
struct Acting {
    before: Uid,
}

impl Acting {
    fn start(uid: u32) -> Result<Self, BoxError> {
        let uid = Uid::from_raw(uid);
        let acting = Self { before: setfsuid(uid) };
        // setfsuid(2) does not report failure: it only returns the previous id.
        if setfsuid(uid) == uid { Ok(acting) } else { Err("cannot connect as that user: CAP_SETUID is missing".into()) }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        setfsuid(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_itself_again_afterwards() {
        let itself = setfsuid(Uid::from_raw(u32::MAX));
        drop(Acting::start(itself.as_raw()).ok());
        assert_eq!(setfsuid(Uid::from_raw(u32::MAX)), itself);
    }
}
