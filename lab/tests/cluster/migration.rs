//! A whole authority moves into a cluster, is killed on the way, goes on, and comes back: nothing is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::net::veth;
use lab::world::{AUTHORITY, AUTHORITY_PORT, Authority, SOON, policy};
use lab::{Etcd, Namespace, Process, poll, test};
use nix::sys::signal::Signal::SIGKILL;
use rusqlite::Connection;

use crate::alone;
use crate::copies::{Tables, are_equal, tables};
use crate::stage::{lab_database, setting};

/// The other member's address.
const OTHER: &str = "198.51.100.20";
/// Time that a migration may take, for each ten thousand accounts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time by which each command on the way back may run longer than the one before.
const STEP: Duration = Duration::from_millis(4);

/// Adds accounts with a session and a grant each to a database whose authority does not run.
fn fill(authority: &Authority, accounts: u64) -> Result<()> {
    let mut connection = Connection::open(lab_database(authority.dir()))?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(&format!(
        "CREATE TEMP TABLE n AS WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {accounts})
         SELECT n, 'person-' || n AS person, randomblob(32) AS token, unixepoch() AS now, unixepoch() + 40000 AS ends
         FROM n;
         INSERT INTO accounts (person, password, created)
            SELECT n.person, alice.password, now FROM n, accounts AS alice WHERE alice.person = 'alice';
         INSERT INTO account_numbers (person, last_slot, unexpired) SELECT person, 0, 1 FROM n;
         INSERT INTO devices SELECT person, 'laptop', now, now FROM n;
         INSERT INTO sessions SELECT token, person, 'laptop', '192.0.2.7', now, ends, NULL FROM n;
         INSERT INTO session_slots (session, account, owner, slot, unexpired)
            SELECT token, account, person, 0, 1 FROM n JOIN account_numbers USING (person);
         INSERT INTO session_verifiers (session, verifier, until) SELECT token, 'edge', ends FROM n;
         INSERT INTO unexpired_grants SELECT account, ends, token, 1 FROM n JOIN account_numbers USING (person);
         INSERT INTO grants (handle, session, person, device, verifier, receiver, rule, source, address, protocol, port,
                             prefix, flags, issued, expires)
            SELECT (1 << 60) + n, token, person, 'laptop', 'edge', 'front', 'policy.toml:1 rule', '192.0.2.7',
                   '192.0.2.20', 6, 7, '192.0.2.20/32', 3, now, ends FROM n;"
    ))?;
    transaction.commit()?;
    Ok(())
}

/// Reads everything except what only members have: their list, and the master keys, which every authority has in a
/// file. The next number of a grant is left out, too, because a member draws random ones.
fn state(database: &Path) -> Result<Tables> {
    let mut tables = tables(database)?;
    tables.remove("shared");
    for row in tables.get_mut("numbering").context("no table numbering")? {
        row.truncate(row.find(" next=").unwrap_or(row.len()));
    }
    Ok(tables)
}

/// Takes the authority out of its cluster. Kills the command again and again, each time a little later, until one is
/// done before. Returns how often a command was killed.
fn come_back(authority: &Authority, host: &Namespace, patience: Duration) -> Result<u32> {
    for killed in 0.. {
        let mut command = authority.prepare(&["migrate"]);
        command.args(["--to", "sqlite", "--keep-state"]);
        let mut process = Process::start(command, host.dir())?;
        let _ = poll(STEP * killed, || process.exit().is_some());
        if process.signal(SIGKILL).is_ok() {
            process.wait(SOON)?;
            continue;
        }
        let status = process.wait(patience)?;
        // The last one that was killed may have been done.
        let is_over = status.success() || process.log().contains("is not a member of a cluster");
        ensure!(is_over && killed > 0, "the way back, killed {killed} times: {}", process.log());
        return Ok(killed);
    }
    bail!("no command was done in time")
}

#[test]
fn a_migration_is_killed_goes_on_and_is_undone_and_everything_is_equal() {
    let _alone = alone();
    test(|| {
        let accounts = setting("VOUCHSAFE_CLUSTER_ACCOUNTS")?.unwrap_or(10_000);
        let patience = PATIENCE * u32::try_from(accounts.div_ceil(10_000))?;
        let (host, other) = (Namespace::new("host")?, Namespace::new("other")?);
        veth(&host, "eth0", &format!("{AUTHORITY}/24"), &other, "eth0", &format!("{OTHER}/24"))?;
        // The start of a server revokes the grants that the policy forbids.
        let policy = policy("5m").replace("\"group:staff\"", "\"everyone\"");
        let mut authority = Authority::make(&host, &policy, "", &["alice"])?;
        authority.stop()?;
        fill(&authority, accounts)?;
        let database = lab_database(authority.dir());
        let before = state(&database)?;
        ensure!(before["grants"].len() as u64 == accounts && before["sessions"].len() as u64 == accounts);
        let head = authority.command(&["audit", "head"], &[])?;
        let etcd = Etcd::cluster(&[(&host, AUTHORITY)], &[])?;
        let etcd = &etcd[0];

        let url = authority.url();
        let to = etcd.url();
        let migrate = || {
            let mut command = authority.prepare(&["migrate"]);
            command.args(["--to", "etcd", "--etcd", &to, "--name", "authority1", "--url", &url]);
            Process::start(command, host.dir())
        };
        // Kill it as soon as something is in etcd, later and later, until one attempt is done before.
        let (mut killed, mut is_done) = (0, false);
        for wait in [0, 50, 100, 200, 400, 800] {
            let mut process = migrate()?;
            let begun = || etcd.ctl(&["get", "/vouchsafe/", "--prefix", "--keys-only", "--limit", "1"]);
            let began =
                poll(patience, || process.exit().is_some() || begun().is_ok_and(|keys| !keys.trim().is_empty()));
            ensure!(began, "nothing comes to etcd:\n{}", process.log());
            std::thread::sleep(Duration::from_millis(wait));
            if process.signal(SIGKILL).is_err() {
                is_done = process.exit().is_some_and(|status| status.success());
                ensure!(is_done, "the migration does not go on: {}", process.log());
                break;
            }
            killed += 1;
            process.wait(SOON)?;
        }
        ensure!(killed > 0, "each migration ended before it was killed: set VOUCHSAFE_CLUSTER_ACCOUNTS higher");
        let began = Instant::now();
        if !is_done {
            let mut process = migrate()?;
            let status = process.wait(patience)?;
            ensure!(status.success(), "the migration does not go on: {}", process.log());
        }
        println!(
            "{accounts} accounts, sessions and grants: killed {killed} times, then done {:.1?} later",
            began.elapsed()
        );
        are_equal(&before, &state(&database)?).context("after the migration")?;

        authority.run()?;
        let bundle = other.dir().join("bundle").to_string_lossy().into_owned();
        let mut member = Authority::at(&other, OTHER);
        let invite = ["authority2", "--name-of-host", OTHER, "--url", &member.url(), "--out", &bundle];
        authority.command(&["cluster", "invite"], &invite)?;
        let began = Instant::now();
        member.command(&["cluster", "join"], &[&bundle, "--listen", &format!("{OTHER}:{AUTHORITY_PORT}")])?;
        println!("another member joined in {:.1?}", began.elapsed());
        member.run()?;
        let mut why = String::new();
        let equal = poll(SOON, || {
            let both = tables(&database).and_then(|one| are_equal(&one, &tables(&lab_database(member.dir()))?));
            both.inspect_err(|error| why = format!("{error:#}")).is_ok()
        });
        ensure!(equal, "the other member has something else: {why}");

        authority.stop()?;
        member.stop()?;
        let shared = state(&database)?;
        // The other member has ended for good.
        println!("on the way back, killed {} times", come_back(&authority, &host, patience)?);
        let after = state(&database)?;
        are_equal(&shared, &after).context("back in the embedded store")?;
        // A server changes some of the other tables by itself, such as the list of policies.
        let only = |all: &Tables| -> Tables {
            let names = ["accounts", "sessions", "grants", "session_slots", "account_numbers", "devices"];
            names.map(|name| (name.to_owned(), all[name].clone())).into()
        };
        are_equal(&only(&before), &only(&after)).context("what was there at first")?;
        authority.command(&["audit", "verify"], &["--head", head.lines().next().context("no head")?])?;
        authority.run().context("the authority with its embedded store")?;
        ensure!(authority.grants()?.len() as u64 == accounts, "the grants are not in force");
        Ok(())
    });
}
