//! Stores in a file which ways to send first packets (*rungs*) worked on each path. So these results remain after a
//! restart of the agent. The file also names the network in which this machine was at the last write. Only root can
//! read the file, because it shows which verifiers the users reach, and from which networks.

use crate::network::Gateway;
use anyhow::{Context, Result, ensure};
use engine::agent::ladder::KeptPath;
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs;
use std::time::Duration;

const NAME: &str = "ladder.json";
/// Maximum length of a file that the agent reads. The file for a thousand users, each with the maximum number of paths,
/// is shorter.
const LENGTH_MAX: u64 = 16 << 20;
/// Number of times that the file may be written without a pause.
const AT_ONCE: u32 = 8;
/// Time after which the file may be written once more.
const PAUSE: Duration = Duration::from_secs(60);

/// The file's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The gateway of the network in which this machine was when the file was written.
    #[serde(default)]
    pub gateway: Option<Gateway>,
    /// The number of the network in which this machine was when the file was written.
    #[serde(default)]
    pub network: u64,
    /// For each path, the results of its rungs.
    #[serde(default)]
    pub paths: Vec<KeptPath>,
}

/// The limit on the rate at which the file is written. The limit is needed because every user can cause new results
/// with each connection, and because each write waits for the disk.
#[derive(Debug, Default)]
pub struct Pace {
    /// Time at which the pauses after all earlier writes have passed. Each write adds a pause. A write is allowed if
    /// the time is then at most [`AT_ONCE`] pauses in the future.
    rested_at: Duration,
}

impl Pace {
    /// Reports whether the file may be written at `now`. Counts a write if the result is `true`.
    pub fn may_write(&mut self, now: Duration) -> bool {
        let rested_at = self.rested_at.max(now) + PAUSE;
        let may = rested_at <= now + PAUSE * AT_ONCE;
        if may {
            self.rested_at = rested_at;
        }
        may
    }
}

/// Reads the file. Returns no results if the file is missing or damaged. The agent then tests the paths again, which
/// delays the first connections on some paths by up to half a second.
pub fn load(folder: &Folder) -> Kept {
    match read(folder) {
        Ok(kept) => kept,
        Err(error) => {
            let file = folder.file(NAME);
            tracing::warn!(
                file = %file.display(),
                "cannot read the ladder's results of the last run, so the agent tests again which rungs work: {error:#}"
            );
            Kept::default()
        }
    }
}

fn read(folder: &Folder) -> Result<Kept> {
    let length = fs::metadata(folder.file(NAME)).map_or(0, |about| about.len());
    ensure!(length <= LENGTH_MAX, "the file has {length} bytes; the agent writes at most {LENGTH_MAX}");
    let Some(bytes) = folder.read(NAME)? else { return Ok(Kept::default()) };
    serde_json::from_slice(&bytes).context("the file is damaged; the agent will replace it")
}

/// Replaces the file atomically.
pub fn save(folder: &Folder, kept: &Kept) -> Result<()> {
    folder.write(NAME, &serde_json::to_vec(kept)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_file_is_written_some_times_at_once_and_then_once_a_minute() {
        let mut pace = Pace::default();
        let mut writes = |seconds: std::ops::Range<u64>| {
            seconds.filter(|second| pace.may_write(Duration::from_secs(*second))).count()
        };
        assert_eq!(writes(1000..1008), 8);
        assert_eq!(writes(1008..1060), 0);
        assert_eq!(writes(1060..1660), 10);
        assert_eq!(writes(9000..9060), 8, "after a rest");
    }

    #[test]
    fn the_file_is_roots_only_and_a_damaged_one_is_as_good_as_none() {
        let room = tempfile::tempdir().unwrap();
        let folder = Folder::at(room.path().join("agent"));
        folder.make().unwrap();
        assert_eq!(load(&folder), Kept::default());
        let rungs = [(
            "packet".to_owned(),
            engine::agent::ladder::KeptRung { works: false, failures: 1, times: 2, until: 1_800_000_000 },
        )];
        let path = KeptPath {
            user: 1000,
            network: u64::MAX,
            verifier: "[2001:db8::1]:4499".parse().unwrap(),
            ipv6: true,
            used: 1_799_999_999,
            round_trip: None,
            rungs: rungs.into(),
        };
        let kept = Kept { gateway: None, network: u64::MAX, paths: vec![path] };
        save(&folder, &kept).unwrap();
        assert_eq!(load(&folder), kept);
        let file = folder.file(NAME);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(load(&folder), Kept::default(), "{length}");
        }
        fs::write(&file, "{\"paths\": [{\"user\": -1}]}").unwrap();
        assert_eq!(load(&folder), Kept::default());
        fs::File::create(&file).unwrap().set_len(LENGTH_MAX + 1).unwrap();
        assert_eq!(load(&folder), Kept::default());
        save(&folder, &kept).unwrap();
        assert_eq!(load(&folder), kept);
    }
}
