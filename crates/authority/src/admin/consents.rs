//! Consents that an operator gives without a request, one by one or from a file.

use super::control::{self, Command, Gave, Reply};
use crate::Directory;
pub use crate::policy::access::{GivenConsent, Giving, Term};
use crate::storage::Operator;
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::document::seconds;
use engine::policy::instant;
use serde::Deserialize;

/// Maximum number of consents that one command gives. This many consents, with their audit entries, fit into one entry
/// of a cluster's log.
pub const MOST_CONSENTS: usize = 500;
/// Maximum length of a file of consents, in bytes.
pub const MOST_FILE: u64 = 4 << 20;

/// A line of a file of consents.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    who: Vec<String>,
    to: String,
    #[serde(default)]
    services: Vec<String>,
    r#for: Option<String>,
    until: Option<String>,
    #[serde(default)]
    note: String,
}

/// Gives consents, all of them or none.
///
/// # Errors
/// Fails if no server is running, or a consent can't be given. The message then names this consent by the text that
/// `place` returns for its index.
pub async fn give(
    directory: &Directory,
    consents: Vec<Giving>,
    is_import: bool,
    place: impl Fn(usize) -> String,
) -> Result<Vec<GivenConsent>> {
    ensure!(!consents.is_empty(), "there is no consent to give");
    let most = MOST_CONSENTS;
    ensure!(consents.len() <= most, "{} consents are too many for one command: give {most} at most", consents.len());
    let command = Command::GiveAccess { consents, by: Operator::current(), is_import };
    match control::ask(directory, command).await? {
        Some(Reply::Done(Gave::Given(given))) => Ok(given),
        Some(Reply::Done(Gave::Refused { nth: Some(nth), why })) => {
            bail!("{}: {why}; no consent was given", place(nth))
        }
        Some(Reply::Done(Gave::Refused { nth: None, why })) => bail!("{why}; no consent was given"),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!(
            "the authority is not running, and only a running authority gives consents: start it with `vouchsafe \
             authority run`"
        ),
    }
}

/// Reads a file of consents: one JSON object on each line. Returns the consents, each with the number of its line.
///
/// # Errors
/// Fails if a line is not valid. The message names `file` and the number of the line.
pub fn read(text: &str, file: &str) -> Result<Vec<(usize, Giving)>> {
    let mut consents = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = || format!("{file}:{number}");
        // The parser counts the lines of its own text, which has only one.
        let Line { who, to, services, r#for, until, note } = serde_json::from_str(line)
            .map_err(|error| anyhow!("{} (column {})", reason(&error), error.column()))
            .with_context(place)?;
        let term = match (r#for, until) {
            (Some(time), None) => seconds(&time).map(Term::For).context("`for`: write a time such as 90m, 8h or 3d"),
            (None, Some(time)) => until_of(&time).map_err(|fault| anyhow!("`until`: {fault}")),
            _ => Err(anyhow!("write either `for` or `until`")),
        };
        let term = term.with_context(place)?;
        ensure!(!who.is_empty(), "{}: `who` is empty", place());
        for holder in who {
            let (receiver, services, note) = (to.clone(), services.clone(), note.clone());
            consents.push((number, Giving { holder, receiver, services, term, note }));
            ensure!(
                consents.len() <= MOST_CONSENTS,
                "{}: a file has at most {MOST_CONSENTS} consents: divide it",
                place()
            );
        }
    }
    Ok(consents)
}

/// Returns the message of an error without the line and column at its end.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(" at line ").map_or_else(|| text.clone(), |(reason, _)| reason.to_owned())
}

/// Reads the time until which a consent lasts.
///
/// # Errors
/// Returns a message that says how to write a time.
pub fn until_of(text: &str) -> Result<Term, String> {
    let time = instant(text).or_else(|| instant(&format!("{text}T00:00:00Z")));
    let fault = || format!("`{}` is not a day (2030-01-31) or a time (2030-01-31T12:00:00Z)", text.escape_debug());
    time.map(Term::Until).ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_consents_is_read_line_by_line() {
        let text = r#"
# the auditors
{"who": ["alice", "group:audit"], "to": "db-1", "services": ["tcp/5432"], "for": "8h", "note": "ticket 4711"}

{"who": ["bob"], "to": "wiki", "until": "2030-01-31"}
"#;
        let read = read(text, "f").unwrap();
        let holders: Vec<_> = read.iter().map(|(line, giving)| (*line, giving.holder.as_str())).collect();
        assert_eq!(holders, [(3, "alice"), (3, "group:audit"), (5, "bob")]);
        assert_eq!((read[1].1.term, read[1].1.note.as_str()), (Term::For(28_800), "ticket 4711"));
        assert_eq!((read[2].1.term, read[2].1.services.len()), (Term::Until(1_896_048_000), 0));
        assert_eq!(until_of("2030-01-31T12:00:00Z"), Ok(Term::Until(1_896_091_200)));
    }

    #[test]
    fn a_line_that_is_not_valid_is_named_with_the_way_out() {
        let good = r#"{"who": ["alice"], "to": "db", "for": "8h"}"#;
        for (line, said) in [
            (r#"{"who": ["alice"], "to": "db"}"#, "f:2: write either `for` or `until`"),
            (r#"{"who": ["alice"], "to": "db", "for": "8h", "until": "2030-01-31"}"#, "write either"),
            (r#"{"who": ["alice"], "to": "db", "for": "8"}"#, "90m, 8h or 3d"),
            (r#"{"who": ["alice"], "to": "db", "until": "tomorrow"}"#, "is not a day"),
            (r#"{"who": [], "to": "db", "for": "8h"}"#, "f:2: `who` is empty"),
            (r#"{"who": "alice", "to": "db", "for": "8h"}"#, "f:2: invalid type"),
            (r#"{"who": ["alice"], "too": "db", "for": "8h"}"#, "unknown field `too`"),
            ("who,to,for", "f:2: expected value (column 1)"),
        ] {
            let error = format!("{:#}", read(&format!("{good}\n{line}\n"), "f").unwrap_err());
            assert!(error.contains(said), "{line}: {error}");
        }
        let many = (0..=MOST_CONSENTS).map(|_| good).collect::<Vec<_>>().join("\n");
        assert!(format!("{:#}", read(&many, "f").unwrap_err()).contains("f:501: a file has at most 500"));
    }
}
