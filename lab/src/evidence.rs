//! What a failed test leaves behind to be looked at: the folders of its namespaces, with logs and captures.

use std::cell::RefCell;
use std::fs;

use anyhow::Result;
use tempfile::TempDir;

thread_local! {
    /// Folders of namespaces that are gone, while the outcome of the test on this thread is open.
    static HELD: RefCell<Option<Vec<TempDir>>> = const { RefCell::new(None) };
}

/// Runs the body of a test; an error fails it just as a panic does, and either keeps its logs and captures.
///
/// (A test that returns a `Result` drops its namespaces before anyone knows that it failed.)
///
/// # Panics
/// If `body` returns an error.
pub fn test(body: impl FnOnce() -> Result<()>) {
    HELD.set(Some(Vec::new()));
    let _settle = Settle;
    if let Err(error) = body() {
        panic!("{error:#}");
    }
}

/// Keeps or deletes the folder of a namespace that ends here.
pub(crate) fn leave(dir: TempDir) {
    HELD.with_borrow_mut(|held| match held {
        Some(held) => held.push(dir),
        None => settle(dir),
    });
}

struct Settle;

impl Drop for Settle {
    fn drop(&mut self) {
        HELD.take().unwrap_or_default().into_iter().for_each(settle);
    }
}

fn settle(dir: TempDir) {
    let has_content = fs::read_dir(dir.path()).is_ok_and(|mut entries| entries.next().is_some());
    if std::thread::panicking() && has_content {
        eprintln!("lab: logs and captures are kept in {}", dir.keep().display());
    }
}
