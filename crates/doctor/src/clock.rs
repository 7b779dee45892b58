//! Checks whether the clock is synchronised: a token is valid within 30 seconds of the verifier's time.

use crate::Check;

const REMEDY: &str = "run a time service (systemd-timesyncd, chrony); tokens need a clock that is right to within 30 s";

/// Checks the kernel's estimate of its clock's error.
pub(crate) fn synchronised() -> Check {
    // SAFETY: an all-zero timex is a valid value of this plain C structure; with `modes` 0 the call changes nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    evaluate(result, state.maxerror)
}

/// Evaluates the result of adjtimex(2), and its error bound in microseconds.
fn evaluate(result: i32, bound: libc::c_long) -> Check {
    match result {
        -1 => Check::warn("clock", "the kernel does not report whether it is synchronised", REMEDY),
        // chrony leaves the kernel in this state unless configured otherwise.
        libc::TIME_ERROR => Check::warn(
            "clock",
            "not synchronised, according to the kernel",
            format!("{REMEDY}; chrony sets the kernel's flag with `rtcsync`"),
        ),
        _ => Check::ok("clock", format!("synchronised within {} ms", bound / 1000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn an_unsynchronised_clock_is_a_warning() {
        assert_eq!(evaluate(libc::TIME_OK, 12_500).found, "synchronised within 12 ms");
        assert_eq!(evaluate(libc::TIME_ERROR, 16_000_000).state, State::Warn);
        assert_eq!(evaluate(-1, 0).state, State::Warn);
    }
}
