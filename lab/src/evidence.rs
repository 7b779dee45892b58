//! Keeps the folders of a failed test's namespaces, with logs and captures, for inspection.

use std::cell::RefCell;
use std::fs;

use anyhow::Result;
use tempfile::TempDir;

thread_local! {
    /// Folders of namespaces that no longer exist. They are kept until the outcome of the test on this thread is known.
    static HELD: RefCell<Option<Vec<TempDir>>> = const { RefCell::new(None) };
}

/// Runs the body of a test. An error fails the test just as a panic does; in both cases logs and captures are kept.
///
/// A test that returned a `Result` itself would drop its namespaces before its failure is known.
///
/// # Panics
/// Panics if `body` returns an error.
pub fn test(body: impl FnOnce() -> Result<()>) {
    HELD.set(Some(Vec::new()));
    let _settle = Settle;
    if let Err(error) = body() {
        panic!("{error:#}");
    }
}

/// Takes over the folder of a namespace that is dropped on this thread: keeps it if the test fails, and deletes it
/// otherwise.
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
