//! Those who watch a decision being made.

/// Sees each check of a decision.
pub trait Observer {
    /// Called with each check in its order. `text` says what was found, and costs nothing unless it is called.
    fn check(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String);
}

/// Sees nothing: a decision without explanation.
impl Observer for () {
    #[inline]
    fn check(&mut self, _name: &'static str, _passed: bool, _text: impl FnOnce() -> String) {}
}
