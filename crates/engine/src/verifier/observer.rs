//! Observers of a decision.

/// Receives each check of a decision.
pub trait Observer {
    /// Called with each check, in order. `text` returns the finding; if it is not called, it costs nothing.
    fn check(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String);
}

/// Ignores the checks, for a decision without explanation.
impl Observer for () {
    #[inline]
    fn check(&mut self, _name: &'static str, _passed: bool, _text: impl FnOnce() -> String) {}
}
