//! The interface through which a decision reports its checks to an observer.

/// An observer of a decision, which receives each check that the decision makes.
pub trait Observer {
    /// Called with each check, in order. `text` returns the finding of the check in words. An observer that does not
    /// need the text need not call `text`.
    fn check(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String);
}

/// Ignores the checks, for a decision without explanation.
impl Observer for () {
    #[inline]
    fn check(&mut self, _name: &'static str, _passed: bool, _text: impl FnOnce() -> String) {}
}
