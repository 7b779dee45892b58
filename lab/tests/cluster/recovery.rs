//! An operator repairs a cluster after a disaster, in the steps of docs/cluster.md: etcd has lost its majority for
//! good, or nothing is left but a backup. Before that, a new master key comes to all members.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::call;
use lab::world::{Agent, DARK4, SOON};
use lab::{Etcd, Namespace, poll, test};

use crate::overlay::Overlay;
use crate::stage::{HOSTS, Host, PEOPLE, Stage, enter, lock};
use crate::{alone, same_everywhere};

/// The index of the host whose authority is restored from a backup.
const LAST: usize = HOSTS.len() - 1;
/// Time to wait for one connection.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Opens connections to ports that nobody has used, until one of them is admitted.
fn reach(from: &Namespace, ports: &mut impl Iterator<Item = u16>, to: impl Fn(u16) -> SocketAddr) -> Result<()> {
    let mut why = None;
    let reached = poll(SOON, || {
        let port = ports.next().expect("the ports have no end here");
        why = call(from, to(port), ATTEMPT).err();
        why.is_none()
    });
    ensure!(reached, "no connection is admitted: {why:?}");
    Ok(())
}

/// Checks that everybody gets something new: people with agents, and the tenant.
fn all_work(stage: &Stage, ports: &mut impl Iterator<Item = u16>) -> Result<()> {
    for client in &stage.clients {
        reach(client, ports, |port| Stage::at(DARK4, port)).context("a person with an agent")?;
    }
    reach(stage.overlay.caller(), ports, Overlay::at).context("a tenant")
}

fn name(at: usize) -> String {
    format!("authority{}", at + 1)
}

/// Makes a new cluster of the authority at a host, which is in none and does not run, and starts it.
fn begin_cluster(stage: &Stage, at: usize, etcd: &[String]) -> Result<()> {
    let (host, name) = (&stage.hosts[at], name(at));
    let mut init = vec!["--name", &name, "--url", &host.url];
    init.extend(etcd.iter().flat_map(|url| ["--etcd", url.as_str()]));
    host.demand(&["cluster", "init"], &init)?;
    lock(&host.authority).run()
}

/// Moves the directory of a host's authority away.
fn lose_directory(host: &Host, to: &str) -> Result<()> {
    let dir = lock(&host.authority).dir().to_owned();
    fs::rename(&dir, dir.with_file_name(to)).with_context(|| dir.display().to_string())
}

fn lose_etcd(host: &Host) -> Result<()> {
    lock(&host.etcd).kill()?;
    Ok(fs::remove_dir_all(host.namespace.dir().join("etcd-data"))?)
}

/// Changes the master key at one member, and checks that the others use the new one.
fn change_master_key(stage: &Stage, ports: &mut impl Iterator<Item = u16>) -> Result<()> {
    let keys = || -> Result<Vec<_>> {
        stage.hosts.iter().map(|host| Ok(fs::read(lock(&host.authority).dir().join("master.key"))?)).collect()
    };
    let before = keys()?;
    stage.hosts[0].demand(&["rotate-master-key"], &["--compromised"])?;
    let is_new = || keys().is_ok_and(|keys| keys[0] != before[0] && keys.iter().all(|key| *key == keys[0]));
    ensure!(poll(SOON, is_new), "the members have different master keys");
    // From now on, verifiers refuse grants by the old key, so the other members issue by the new one.
    let used = |agent: &Agent| Ok::<_, anyhow::Error>(agent.status()?["session"]["in_use"].to_string());
    let used = stage.agents.iter().map(used).collect::<Result<Vec<_>>>()?;
    ensure!(used.iter().any(|url| !url.contains(HOSTS[0])), "no agent is at another member: {used:?}");
    all_work(stage, ports).context("after the master key was changed at the first member")
}

#[test]
fn a_cluster_is_made_anew_of_a_member_and_of_a_backup() {
    let _alone = alone();
    test(|| {
        let stage = Stage::new(&[])?;
        let mut ports = 2000..60_000;
        change_master_key(&stage, &mut ports)?;
        let backup = stage.hosts[LAST].namespace.dir().join("backup").to_string_lossy().into_owned();
        stage.hosts[LAST].demand(&["backup"], &[&backup])?;

        // Two servers of etcd lose their disks. The third one is no majority.
        stage.hosts[..2].iter().try_for_each(lose_etcd)?;
        // 1. Choose the member with the highest entry, and stop all members, this one last.
        let mut applied = Vec::new();
        for host in &stage.hosts {
            applied.push(host.status()?["applied"].as_u64().context("`cluster status` has no `applied`")?);
        }
        let (best, _) = applied.iter().enumerate().max_by_key(|(_, applied)| **applied).context("no member")?;
        for host in stage.hosts.iter().filter(|host| host.url != stage.hosts[best].url) {
            lock(&host.authority).stop()?;
        }
        lock(&stage.hosts[best].authority).stop()?;
        // 2. It leaves, and begins a new cluster over an etcd without data.
        let text = stage.hosts[best].demand(&["cluster", "leave"], &["--without-etcd", "--keep-state"])?;
        ensure!(text.contains("etcd did not answer"), "{text}");
        lose_etcd(&stage.hosts[2])?;
        let places: Vec<_> = stage.hosts.iter().map(|host| &host.namespace).zip(HOSTS).collect();
        let etcd = Etcd::cluster(&places, &[])?;
        let urls: Vec<_> = etcd.iter().map(Etcd::url).collect();
        for (host, etcd) in stage.hosts.iter().zip(etcd) {
            *lock(&host.etcd) = etcd;
        }
        // 3. Start it.
        begin_cluster(&stage, best, &urls)?;
        all_work(&stage, &mut ports).context("with one member of a new cluster")?;
        // 4. The other members join again.
        for (at, host) in stage.hosts.iter().enumerate().filter(|(at, _)| *at != best) {
            lose_directory(host, "old-state")?;
            let (inviting, mut member) = (lock(&stage.hosts[best].authority), lock(&host.authority));
            enter(&inviting, &member, &host.namespace, at, &urls)?;
            member.run()?;
        }
        same_everywhere(&stage)?;
        all_work(&stage, &mut ports).context("with all members")?;

        // All disks are lost. A backup becomes an authority alone, and then the first member of a new cluster.
        for host in &stage.hosts {
            lock(&host.authority).stop()?;
            lose_directory(host, "lost-state")?;
        }
        // Agents and verifiers know the member that stopped last.
        let host = &stage.hosts[LAST];
        host.demand(&["restore"], &[&backup])?;
        ensure!(host.status().is_err(), "a restored authority is still a member");
        begin_cluster(&stage, LAST, &urls)?;
        for (agent, person) in stage.agents.iter().zip(PEOPLE) {
            // A backup without `--keep-sessions` ends sessions.
            agent.login(&lock(&host.authority), person)?;
        }
        all_work(&stage, &mut ports).context("with a member from a backup")?;
        host.demand(&["audit", "verify"], &[]).map(drop)
    });
}
