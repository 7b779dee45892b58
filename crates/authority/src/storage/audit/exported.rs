//! Verifies audit trails that were exported as lines of JSON, for example by another member of a cluster.

use super::AuditEntry;
use super::chain::{AuditHash, CUT_EVENT, NotedHead, Trail, Verdict, genesis, link};
use anyhow::{Context, Result};
use std::io::BufRead;

/// The state of a trail up to the entry that was read last.
#[derive(Default)]
struct Progress {
    /// The first entry, if it does not follow from the trail's beginning.
    unfounded: Option<AuditEntry>,
    first: Option<i64>,
    last: Option<(i64, AuditHash)>,
}

/// Verifies the export of an authority's trails, and checks that it contains the heads in `noted`. The trails begin
/// with `identity`, the DER form of the authority's CA certificate. Entries that the authority has removed because of
/// their age may be missing.
///
/// # Errors
/// Fails if the lines cannot be read, or a line is not an entry.
pub fn verify_export(lines: impl BufRead, identity: &[u8], noted: &[NotedHead]) -> Result<Verdict> {
    let broken = |trail: Trail, what: String| Ok(Verdict::Broken(format!("trail {}, {what}", trail.name())));
    let mut trails = Trail::ALL.map(|trail| (trail, Progress::default()));
    let (mut missing, mut cuts, mut count, mut number) = (noted.to_vec(), Vec::new(), 0, 0);
    for (at, line) in lines.lines().enumerate() {
        let line = line.with_context(|| format!("cannot read line {}", at + 1))?;
        let entry: AuditEntry = serde_json::from_str(&line)
            .with_context(|| format!("line {} is not an entry of an audit trail", at + 1))?;
        let found = trails.iter_mut().find(|(trail, _)| trail.name() == entry.trail);
        let (trail, progress) =
            found.with_context(|| format!("line {}: its trail is neither `acts` nor `refusals`", at + 1))?;
        let trail = *trail;
        if entry.id <= number {
            return broken(trail, format!("entry {}: it comes after entry {number}, but numbers must rise", entry.id));
        }
        let before = progress.last.map_or_else(|| genesis(trail, identity), |(_, hash)| hash);
        let hash = link(&before, &entry);
        let hash = if hex::encode(hash) == entry.hash {
            hash
        } else if progress.last.is_none() {
            // The trail was cut before this entry. Its hash is compared when the cut is known.
            let claimed = hex::decode(&entry.hash).ok().and_then(|hash| AuditHash::try_from(hash).ok());
            let Some(claimed) = claimed else {
                return broken(trail, format!("entry {}: its hash is malformed", entry.id));
            };
            progress.unfounded = Some(entry.clone());
            claimed
        } else {
            return broken(
                trail,
                format!("entry {}: its hash does not follow from the entries before it, or some are missing", entry.id),
            );
        };
        let is_this = |noted: &NotedHead| noted.trail == trail && noted.id == entry.id;
        if noted.iter().any(|noted| is_this(noted) && !entry.hash.starts_with(&noted.hash)) {
            return broken(trail, format!("entry {}: it differs from the noted one", entry.id));
        }
        missing.retain(|noted| !is_this(noted));
        if entry.event == CUT_EVENT {
            cuts.extend(entry.detail.split(' ').filter_map(|word| word.parse::<NotedHead>().ok()));
        }
        progress.first.get_or_insert(entry.id);
        progress.last = Some((entry.id, hash));
        (count, number) = (count + 1, entry.id);
    }
    for (trail, Progress { unfounded, first, last }) in &trails {
        let is_cut_before = |entry: &AuditEntry| {
            let of_trail = cuts.iter().filter(|cut| cut.trail == *trail && cut.id < entry.id);
            let mut hashes = of_trail.filter_map(|cut| AuditHash::try_from(hex::decode(&cut.hash).ok()?).ok());
            hashes.any(|hash| hex::encode(link(&hash, entry)) == entry.hash)
        };
        if let Some(entry) = unfounded.as_ref().filter(|entry| !is_cut_before(entry)) {
            return broken(
                *trail,
                format!("the beginning: entries before {} are missing, and no entry records their removal", entry.id),
            );
        }
        let begin = if unfounded.is_some() { first.unwrap_or(0) } else { 0 };
        // Number 0 stands for a trail without entries, and heads before the cut can't be compared.
        let of_trail = missing.iter().filter(|noted| noted.trail == *trail && noted.id > 0 && noted.id >= begin);
        if let Some(noted) = of_trail.max_by_key(|noted| noted.id) {
            let end = last.map_or(0, |(id, _)| id);
            return if noted.id > end {
                broken(
                    *trail,
                    format!(
                        "the end: {end} is the last entry of the export, but the trail has had an entry {}. Entries \
                         were removed, or the export was made before that entry",
                        noted.id
                    ),
                )
            } else {
                broken(*trail, format!("entry {}: it was noted but is missing", noted.id))
            };
        }
    }
    Ok(Verdict::Whole(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::tests::database;
    use crate::storage::{AuditEvent, Database};

    const IDENTITY: &[u8] = b"an authority";

    fn exported(database: &Database, after: i64) -> Vec<String> {
        let mut lines = Vec::new();
        let written = database.each_audit_entry(after, |entry| {
            lines.push(serde_json::to_string(&entry)?);
            Ok(())
        });
        written.unwrap();
        lines
    }

    fn noted(database: &Database) -> Vec<NotedHead> {
        database.audit_heads().unwrap().iter().map(|head| head.to_string().parse().unwrap()).collect()
    }

    fn verdict(lines: &[String], noted: &[NotedHead]) -> Verdict {
        verify_export(lines.join("\n").as_bytes(), IDENTITY, noted).unwrap()
    }

    fn broken(lines: &[String], noted: &[NotedHead]) -> String {
        match verdict(lines, noted) {
            Verdict::Broken(what) => what,
            Verdict::Whole(_) => panic!("taken for whole"),
        }
    }

    /// Returns a database with entries in both trails.
    fn trails(room: &tempfile::TempDir) -> Database {
        let mut database = database(room);
        for time in 0..10 {
            let name = if time % 3 == 0 { "denied" } else { "granted" };
            database.audit(&AuditEvent::new(name).person("alice").detail("\u{e4} \"b\""), 1000 + time).unwrap();
        }
        database
    }

    #[test]
    fn an_export_is_whole_until_somebody_changes_it() {
        let room = tempfile::tempdir().unwrap();
        let mut database = trails(&room);
        let (lines, heads) = (exported(&database, 0), noted(&database));
        assert_eq!(verdict(&lines, &heads), Verdict::Whole(lines.len() as u64));
        for at in 0..lines.len() {
            let without = [&lines[..at], &lines[at + 1..]].concat();
            broken(&without, &heads);
            let changed: Vec<_> = (0..lines.len())
                .map(|line| if line == at { lines[line].replace("alice", "mallory") } else { lines[line].clone() })
                .collect();
            if changed != lines {
                broken(&changed, &heads);
            }
        }
        assert!(broken(&lines[3..], &[]).contains("the beginning: entries before"));
        assert!(broken(&[], &heads).contains("the end: 0 is the last entry"));
        let swapped = [&lines[1..2], &lines[..1], &lines[2..]].concat();
        assert!(broken(&swapped, &[]).contains("numbers must rise"));
        let other = verify_export(lines.join("\n").as_bytes(), b"another authority", &[]).unwrap();
        assert!(matches!(other, Verdict::Broken(what) if what.contains("the beginning")));
        // Entries that are newer than the heads are no fault, but an export that is older is not what was asked for.
        database.audit(&AuditEvent::new("granted"), 1100).unwrap();
        let later = exported(&database, 0);
        assert!(matches!(verdict(&later, &heads), Verdict::Whole(_)));
        assert!(broken(&lines, &noted(&database)).contains("before that entry"));
    }

    #[test]
    fn what_the_authority_has_cut_is_not_missing() {
        let room = tempfile::tempdir().unwrap();
        let mut database = trails(&room);
        let (all, early) = (exported(&database, 0), noted(&database));
        // Entries before 1005 go.
        database.prune(1105, 100, 100).unwrap();
        let (lines, heads) = (exported(&database, 0), noted(&database));
        assert!(lines.len() < all.len(), "{lines:#?}");
        assert!(matches!(verdict(&lines, &heads), Verdict::Whole(_)), "{:?}", verdict(&lines, &heads));
        assert!(matches!(verdict(&lines, &early), Verdict::Whole(_)));
        broken(&lines[1..], &heads);
        // A collector that took each entry once has those, too, that were cut later.
        let last = early.iter().map(|noted| noted.id).max().unwrap();
        let together = [all.clone(), exported(&database, last)].concat();
        assert!(together.len() > all.len() && matches!(verdict(&together, &heads), Verdict::Whole(_)));
    }
}
