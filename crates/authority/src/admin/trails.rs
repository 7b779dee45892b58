//! Checks copies of the audit trails of all members of a cluster.

use super::control::{self, Command, Reply};
use crate::Directory;
use crate::cluster::membership::{Cluster, Members, known_urls};
use crate::cluster::status::NO_MEMBER;
use crate::cluster::trails::TrailState;
use crate::storage::{NotedHead, Operator, Verdict, verify_export};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The heads of members' audit trails, such as `acts:123:9f86d081…`, by the member's name.
pub type Heads = BTreeMap<String, Vec<String>>;

/// The result for one member.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// The copy has been verified.
    Verified(Verdict),
    /// There is no copy of the member's trails.
    NoCopy,
    /// The copy cannot be read.
    Unreadable(String),
}

/// Accepts that the audit trails of this member lack entries that it has published earlier. Returns a line for the
/// operator.
///
/// # Errors
/// Fails if the server is not running, or the trails lack nothing.
pub async fn accept(directory: &Directory) -> Result<String> {
    match control::send(directory, Command::AcceptTrails { by: Operator::current() }).await? {
        Some(Reply::Done(text)) => Ok(text),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!("the authority is not running: start it with `vouchsafe authority run`"),
    }
}

/// Returns the heads of all members' audit trails, as the members published them in etcd. Blocks until etcd has
/// answered.
///
/// # Errors
/// Fails if the authority is not a member of a cluster, or etcd does not answer.
pub fn heads(directory: &Directory) -> Result<Heads> {
    with_cluster(directory, |cluster| {
        let published = cluster.read_trails()?.into_iter();
        // A copy must contain the entries that the trails have lost.
        Ok(published.map(|TrailState { name, heads, lost, .. }| (name, [lost, heads].concat())).collect())
    })
}

/// Parses heads, one a line, each after the name of its member, as `audit head --cluster` prints them.
///
/// # Errors
/// Fails if a line is malformed; the error states the line's number.
pub fn parse(text: &str) -> Result<Heads> {
    let mut heads = Heads::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let words = line.split_once(' ').map(|(name, head)| (name.trim(), head.trim()));
        let (name, head) = words.with_context(|| format!("line {} is not `MEMBER TRAIL:ID:HASH`", at + 1))?;
        heads.entry(name.into()).or_default().push(head.into());
    }
    Ok(heads)
}

/// Verifies the copies of members' audit trails, which `audit export` wrote at each member. The copies must contain the
/// heads in `noted`. Returns the result for each member of the cluster, each member in `noted`, and each copy.
///
/// # Errors
/// Fails if the authority is not a member of a cluster, the CA certificate or the database cannot be read, or a head is
/// malformed.
pub fn verify(
    directory: &Directory,
    copies: &BTreeMap<String, PathBuf>,
    noted: &Heads,
) -> Result<BTreeMap<String, Checked>> {
    let (identity, known) = (directory.identity()?, known_urls(&directory.open_database()?)?);
    ensure!(!known.is_empty(), NO_MEMBER);
    let names: BTreeSet<_> = known.keys().chain(noted.keys()).chain(copies.keys()).collect();
    let check = |name: &String| {
        let Some(copy) = copies.get(name) else { return Ok::<_, anyhow::Error>(Checked::NoCopy) };
        let heads = noted.get(name).into_iter().flatten().map(|head| head.parse::<NotedHead>());
        let heads =
            heads.collect::<Result<Vec<_>>>().with_context(|| format!("a head of member {name} is malformed"))?;
        let read = || {
            let file = File::open(copy).with_context(|| format!("cannot read {}", copy.display()))?;
            verify_export(BufReader::new(file), &identity, &heads).with_context(|| copy.display().to_string())
        };
        Ok(read().map_or_else(|error| Checked::Unreadable(format!("{error:#}")), Checked::Verified))
    };
    names.into_iter().map(|name| Ok((name.clone(), check(name)?))).collect()
}

/// Reads heads from a file.
///
/// # Errors
/// Fails if the file cannot be read, or a line is malformed.
pub fn read(path: &Path) -> Result<Heads> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| shown.to_string())
}

fn with_cluster<T>(directory: &Directory, work: impl FnOnce(&Cluster) -> Result<T>) -> Result<T> {
    let members = Members::read(directory.path(), None)?;
    work(members.cluster().context(NO_MEMBER)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_printed() {
        let heads = parse("b acts:1:0123456789ab\nb refusals:0:ffffffffffff\n\nc acts:2:0123456789ab\n").unwrap();
        assert_eq!(heads["b"], ["acts:1:0123456789ab", "refusals:0:ffffffffffff"]);
        assert_eq!(heads["c"].len(), 1);
        assert!(format!("{:#}", parse("b\n").unwrap_err()).contains("line 1"));
    }
}
