//! The thread that makes the calls. It has a runtime of its own, so callers can be inside or outside of another
//! runtime.

use crate::gateway::Gateway;
use anyhow::{Context, Result};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

/// Maximum number of calls that run at once.
const MOST_RUNNING: usize = 64;
/// Maximum number of further calls that wait. Only calls of this process wait here. A call that finds the queue full
/// fails at once, and a call whose time is over while it waits is not sent.
const MOST_WAITING: usize = 256;

type Run = Pin<Box<dyn Future<Output = ()> + Send>>;
type Job = Box<dyn FnOnce(Arc<Gateway>) -> Run + Send>;

/// A handle to the thread that makes the calls to etcd. The thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct Worker {
    jobs: mpsc::Sender<Job>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(gateway: Gateway) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot prepare the thread that calls etcd")?;
        let (jobs, waiting) = mpsc::channel(MOST_WAITING);
        std::thread::Builder::new()
            .name("etcd".into())
            .spawn(move || {
                runtime.block_on(serve(Arc::new(gateway), waiting));
                // A look-up of a name can still be running in a thread of the runtime. Do not wait for it.
                runtime.shutdown_background();
            })
            .context("cannot start the thread that calls etcd")?;
        Ok(Self { jobs })
    }

    /// Passes a job to the thread. Fails at once if too many jobs wait.
    pub fn run<F>(&self, job: impl FnOnce(Arc<Gateway>) -> F + Send + 'static) -> Result<(), &'static str>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.jobs.try_send(Box::new(move |gateway| Box::pin(job(gateway)))).map_err(|error| match error {
            TrySendError::Full(_) => "too many calls wait for etcd",
            TrySendError::Closed(_) => "the thread that calls etcd has ended",
        })
    }
}

async fn serve(gateway: Arc<Gateway>, mut waiting: mpsc::Receiver<Job>) {
    let running = Arc::new(Semaphore::new(MOST_RUNNING));
    while let Some(job) = waiting.recv().await {
        let Ok(permit) = running.clone().acquire_owned().await else { return };
        let run = job(gateway.clone());
        tokio::spawn(async move {
            run.await;
            drop(permit);
        });
    }
}
