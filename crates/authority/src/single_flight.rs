//! Single-flight: concurrent callers share runs of the same work. A run serves every caller whose call came before the
//! run began. So a caller waits for at most two runs.

use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// Shares the runs of one kind of work among concurrent callers.
#[derive(Default)]
pub struct SingleFlight {
    begun: AtomicU64,
    /// The number of the last run that succeeded. The lock is held during a run.
    succeeded: Mutex<u64>,
}

impl SingleFlight {
    /// Waits until a run of `work` that began after this call has succeeded. If no other caller has started such a run,
    /// this caller runs `work` itself.
    ///
    /// # Errors
    /// Fails if the caller's own run of `work` failed. A failed run serves no other caller.
    pub async fn run(&self, work: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let requested = self.begun.load(Ordering::SeqCst);
        let mut succeeded = self.succeeded.lock().await;
        if *succeeded > requested {
            return Ok(());
        }
        let turn = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        work().await?;
        *succeeded = turn;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;

    /// Returns how often the work ran for ten callers, nine of whom arrive during the first run, and how many of them
    /// succeeded. `first` gives the result of the first run.
    async fn turns(first: fn() -> Result<()>) -> (u32, usize) {
        let (flight, done) = (SingleFlight::default(), std::cell::Cell::new(0));
        let work = async || {
            done.set(done.get() + 1);
            let nth = done.get();
            tokio::task::yield_now().await;
            if nth == 1 { first() } else { Ok(()) }
        };
        let answers = join_all((0..10).map(|_| flight.run(&work))).await;
        (done.get(), answers.iter().filter(|answer| answer.is_ok()).count())
    }

    #[tokio::test]
    async fn ten_who_ask_while_work_is_done_share_the_next_turn() {
        // All ten have called before the second run begins.
        assert_eq!(turns(|| Ok(())).await, (2, 10));
    }

    #[tokio::test]
    async fn work_that_failed_is_done_for_nobody_else() {
        assert_eq!(turns(|| anyhow::bail!("no")).await, (2, 9));
    }
}
