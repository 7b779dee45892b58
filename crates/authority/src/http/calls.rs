//! Lets the calls that are under way end before the server stops. A login that is cut in the middle would fail, because
//! the client must not send it twice.

use super::problems::Problem;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum time for which a server that stops waits for calls.
const PATIENCE: Duration = Duration::from_secs(3);

/// The calls that are under way. A stream of events counts only until it begins.
#[derive(Default)]
pub struct Calls {
    count: AtomicUsize,
    refuses: AtomicBool,
    ended: Notify,
}

impl Calls {
    /// Waits until all calls have been answered, for three seconds at most. If `refuses` is set, refuses calls that
    /// come from now on: clients make them at another member of the cluster.
    pub async fn end(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
        let none = async {
            loop {
                let ended = self.ended.notified();
                if self.count.load(Ordering::SeqCst) == 0 {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout(PATIENCE, none).await.is_err() {
            tracing::warn!("stopping although calls are still under way after {} s", PATIENCE.as_secs());
        }
    }
}

/// A call that is under way.
struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

/// Counts a call while it is under way. Refuses the call if [`Calls::end`] was called with `refuses` set.
pub async fn count_calls(State(calls): State<Arc<Calls>>, request: Request, next: Next) -> Response {
    calls.count.fetch_add(1, Ordering::SeqCst);
    let call = Call(calls);
    match call.0.refuses.load(Ordering::SeqCst) {
        true => Problem::NoMajority.into_response(),
        false => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower_service::Service;

    #[tokio::test]
    async fn a_call_under_way_ends_and_later_ones_are_refused() {
        let (calls, go_on) = (Arc::<Calls>::default(), Arc::<Notify>::default());
        let waits = {
            let go_on = go_on.clone();
            get(async move || go_on.notified().await)
        };
        let router: Router = Router::new().route("/", waits).layer(from_fn_with_state(calls.clone(), count_calls));
        let ask = || router.clone().call(Request::new(Body::empty()));
        let first = tokio::spawn(ask());
        while calls.count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let stopping = tokio::spawn({
            let calls = calls.clone();
            async move { calls.end(true).await }
        });
        while !calls.refuses.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!stopping.is_finished(), "the first call is still under way");
        go_on.notify_one();
        assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
        stopping.await.unwrap();
    }
}
