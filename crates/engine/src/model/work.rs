//! Counts the steps of look-ups, for tests of the cost of a packet.

#[cfg(test)]
thread_local! {
    static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Records that a look-up has examined one more entry. Does nothing outside of tests.
#[inline]
pub(crate) fn examined() {
    #[cfg(test)]
    EXAMINED.with(|count| count.set(count.get() + 1));
}

/// Returns how many entries were examined while `work` ran.
#[cfg(test)]
pub(crate) fn steps(work: impl FnOnce()) -> usize {
    let before = EXAMINED.get();
    work();
    EXAMINED.get() - before
}
