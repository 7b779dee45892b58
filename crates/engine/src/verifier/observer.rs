//! The interface through which an observer learns which checks a decision makes.

/// An observer of a decision, which receives each check that the decision makes.
pub trait Observer {
    /// Called with each check, in order. `text` returns what the check found, in words; an observer that ignores the
    /// text need not call it.
    fn check(&mut self, name: &'static str, passed: bool, text: impl FnOnce() -> String);
}

/// Ignores the checks, for a decision without explanation.
impl Observer for () {
    #[inline]
    fn check(&mut self, _name: &'static str, _passed: bool, _text: impl FnOnce() -> String) {}
}
