//! The result of one check, and the report of a list of checks.

use serde::Serialize;

/// Severity of a check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The check found no fault.
    Ok,
    /// The item works, but could be better.
    Warn,
    /// The item is required and missing.
    Missing,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Interface that was checked; `None` if the check concerns the host.
    pub interface: Option<String>,
    /// Name of the check.
    pub check: &'static str,
    /// Severity of the result.
    pub state: State,
    /// Finding, in one line.
    pub found: String,
    /// Advice; `None` if the check found no fault.
    pub remedy: Option<String>,
}

impl Check {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { interface: None, check, state: State::Ok, found: line(&found.into()), remedy: None }
    }

    pub(crate) fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Warn, remedy: Some(line(&remedy.into())), ..Self::ok(check, found) }
    }

    pub(crate) fn missing(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Missing, ..Self::warn(check, found, remedy) }
    }

    pub(crate) fn on(self, interface: &str) -> Self {
        Self { interface: Some(interface.to_owned()), ..self }
    }
}

/// Returns the first line, without control characters, which could control a terminal.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace(char::is_control, "?")
}

/// Formats the report for users. It has a header for each interface, a line for each check with the remedy below it,
/// and a summary at the end.
pub(crate) fn report(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut about = &None;
    for check in checks {
        if check.interface != *about {
            about = &check.interface;
            text += &format!("\n{}\n", about.as_deref().unwrap_or("host"));
        }
        text += &format!("{:8} {:width$}  {}\n", check.state.name(), check.check, check.found);
        if let Some(remedy) = &check.remedy {
            text += &format!("{:8} {:width$}  -> {remedy}\n", "", "");
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    text + &match (count(State::Missing), count(State::Warn)) {
        (0, 0) => "\nall well\n".to_owned(),
        (0, warnings) => format!("\nnothing missing, {warnings} to review\n"),
        (missing, warnings) => format!("\n{missing} missing, {warnings} to review\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_below_each_check_what_to_do() {
        let checks = [
            Check::ok("kernel", "6.18"),
            Check::warn("clock", "adrift", "set it\nor not"),
            Check::missing("xdp", "gone\u{7}", "get it").on("eth0"),
        ];
        let expected = "\
ok       kernel  6.18
warn     clock   adrift
                 -> set it

eth0
missing  xdp     gone?
                 -> get it

1 missing, 1 to review
";
        assert_eq!(report(&checks), expected);
        assert!(report(&checks[..2]).ends_with("\nnothing missing, 1 to review\n"));
        assert!(report(&checks[..1]).ends_with("\nall well\n"));
    }

    #[test]
    fn json_has_every_field() {
        let json = serde_json::to_string(&Check::warn("xdp", "generic", "buy").on("eth0")).unwrap();
        let expected = r#"{"interface":"eth0","check":"xdp","state":"warn","found":"generic","remedy":"buy"}"#;
        assert_eq!(json, expected);
    }
}
