//! The state of the cluster as this member knows it. The member's server and etcd need not be running.

use super::confirm::{Followed, known, wait_without_server};
use super::contact::Standing;
use super::membership::{Cluster, KNOWN, KnownMember, MemberState, Members, check_alike};
use crate::storage::SCHEMA_VERSION;
use crate::{Directory, now};
use anyhow::{Context, Result};
use serde::Serialize;
use shell::table::{Table, utc};
use std::fmt;

/// A server of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdStatus {
    /// The URL at which this member reaches the server.
    pub endpoint: String,
    /// The version of the server; `None` if it did not answer.
    pub version: Option<String>,
    /// Whether the server leads the others.
    pub is_leader: bool,
    /// The size of the server's database, in bytes.
    pub size: u64,
    /// The server's alarms and errors, or the reason why it did not answer.
    pub problems: Vec<String>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberStatus {
    /// The member's name.
    pub name: String,
    /// The URL at which agents and verifiers reach the member.
    pub url: String,
    /// Whether the member is running and publishes its state in etcd. `None` if etcd does not answer.
    pub is_there: Option<bool>,
    /// The state that the member published last, if the member is running.
    pub state: Option<MemberState>,
    /// Number of entries of the log that the member's decisions do not take into account yet; `None` if the member is
    /// not running, or etcd does not answer.
    pub behind: Option<u64>,
    /// Heads that the member has published, and that its audit trails do not contain any more.
    pub lost: Vec<String>,
}

/// The cluster, as this member knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The cluster's id.
    pub cluster: String,
    /// The name of this member.
    pub name: String,
    /// The present rights of this member; `None` if its server is not running.
    pub standing: Option<Standing>,
    /// Number of the last entry of the log; `None` if etcd does not answer.
    pub head: Option<u64>,
    /// Number of the last entry of the log that this member's database contains.
    pub applied: u64,
    /// The reason why etcd does not answer; `None` if it answers.
    pub problem: Option<String>,
    /// The servers of etcd.
    pub etcd: Vec<EtcdStatus>,
    /// The members of the cluster, in the order of their names.
    pub members: Vec<MemberStatus>,
    /// A sentence about a setting in which two members differ although the values must be equal; `None` if there is
    /// none.
    pub disagreement: Option<String>,
    /// The format in which the members write: the oldest of the members' formats. `None` if this version can't write
    /// it.
    pub format: Option<i64>,
    /// The time of this status, in Unix seconds.
    pub now: u64,
}

impl Status {
    /// Collects the status of the cluster to which the authority of `directory` belongs. `standing` is the answer of
    /// this authority's running server. Blocks until etcd has answered, for some seconds at most.
    ///
    /// # Errors
    /// Fails if the authority is not a member of a cluster, or a file of the directory cannot be read.
    pub fn read(directory: &Directory, standing: Option<Standing>) -> Result<Self> {
        let members = Members::read(directory.path(), None)?;
        let cluster = members.cluster().context(NO_MEMBER)?;
        let database = directory.open_database()?;
        let applied = database.applied()?;
        let listed = database.shared_below(KNOWN)?;
        let format = database.cluster_format().ok();
        let (head, problem) = match cluster.log().head() {
            Ok(head) => (Some(head), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let (there, trails) = match head {
            Some(_) => (cluster.read()?, cluster.read_trails()?),
            None => (Vec::new(), Vec::new()),
        };
        let mut all: Vec<_> = listed
            .into_iter()
            .map(|(name, known)| {
                let url = serde_json::from_slice::<KnownMember>(&known).map(|known| known.url).unwrap_or_default();
                MemberStatus { name, url, is_there: head.map(|_| false), state: None, behind: None, lost: Vec::new() }
            })
            .collect();
        for state in there {
            let status = MemberStatus {
                name: state.name.clone(),
                url: state.url.clone(),
                is_there: Some(true),
                behind: head.map(|head| head.saturating_sub(state.followed)),
                state: Some(state),
                lost: Vec::new(),
            };
            match all.iter_mut().find(|member| member.name == status.name) {
                Some(member) => *member = status,
                None => all.push(status),
            }
        }
        for trail in trails {
            if let Some(member) = all.iter_mut().find(|member| member.name == trail.name) {
                member.lost = trail.lost;
            }
        }
        let states = || all.iter().filter_map(|member| member.state.as_ref());
        let disagreement = states().find_map(|own| {
            states().find_map(|other| Some(check_alike(own, std::slice::from_ref(other)).err()?.to_string()))
        });
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self {
            cluster: cluster.config().id.to_string(),
            name: cluster.config().name.clone(),
            standing,
            head,
            applied,
            problem,
            etcd: etcd_status(cluster),
            members: all,
            disagreement,
            format,
            now: now(),
        })
    }

    /// Reports whether the cluster is in order: all members are running, with equal settings and complete audit trails,
    /// and all servers of etcd answer without problems. This member must also be able to record changes, and to write
    /// the members' format.
    pub fn is_good(&self) -> bool {
        self.head.is_some()
            && self.disagreement.is_none()
            && matches!(self.standing, Some(Standing::Member))
            && self.etcd.iter().all(|server| server.problems.is_empty())
            && self.format.is_some()
            && self.members.iter().all(|member| member.is_there == Some(true) && member.lost.is_empty())
    }
}

/// Message: this authority is in no cluster, and how to make it a member of one.
pub const NO_MEMBER: &str = "this authority is not a member of a cluster: `vouchsafe authority cluster init` makes it \
    the first member of a new cluster, and `cluster join` creates a member from another member's invitation";

/// Asks each server of etcd for its status.
fn etcd_status(cluster: &Cluster) -> Vec<EtcdStatus> {
    match cluster.etcd().members() {
        Ok(servers) => servers
            .into_iter()
            .map(|server| {
                let is_leader = server.is_leader();
                let etcd::MemberStatus { endpoint, error, version, db_size, mut problems, .. } = server;
                let version = error.is_none().then_some(version);
                problems.extend(error);
                EtcdStatus { endpoint, version, is_leader, size: db_size.max(0).cast_unsigned(), problems }
            })
            .collect(),
        Err(error) => {
            let silent = |endpoint: &String| EtcdStatus {
                endpoint: endpoint.clone(),
                version: None,
                is_leader: false,
                size: 0,
                problems: vec![error.to_string()],
            };
            cluster.config().endpoints.iter().map(silent).collect()
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cluster {}; this is member {}", self.cluster, self.name)?;
        match &self.standing {
            Some(standing) => writeln!(f, "{}", standing.sentence(self.now))?,
            None => writeln!(f, "the server of this member is not running: `vouchsafe authority run` starts it")?,
        }
        match (self.head, &self.problem) {
            (Some(head), _) => writeln!(
                f,
                "the log ends at entry {head}; the database here contains everything up to entry {}",
                self.applied
            )?,
            (None, problem) => writeln!(
                f,
                "etcd does not answer ({}): it is not known which members are running; the database here ends at \
                 entry {}",
                problem.as_deref().unwrap_or("unknown reason"),
                self.applied
            )?,
        }
        if let Some(disagreement) = &self.disagreement {
            writeln!(f, "the members do not agree: {disagreement}")?;
        }
        match self.format {
            Some(SCHEMA_VERSION) => {}
            Some(format) => writeln!(
                f,
                "the members write format {format} of the database until all of them have been upgraded; this version \
                 has format {SCHEMA_VERSION}"
            )?,
            None => writeln!(f, "this version can't write the format of the other members: see docs/cluster.md")?,
        }
        for MemberStatus { name, lost, .. } in self.members.iter().filter(|member| !member.lost.is_empty()) {
            writeln!(
                f,
                "the audit trails of member {name} lack entries that it has published: {}. When you know the \
                 reason, run `vouchsafe authority audit accept` at {name}",
                lost.join(" and ")
            )?;
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let row = |server: &EtcdStatus| {
            vec![
                server.endpoint.clone(),
                or_dash(server.version.clone()),
                if server.is_leader { "yes" } else { "-" }.into(),
                format!("{:.1} MB", server.size as f64 / 1e6),
                if server.problems.is_empty() { "-".into() } else { server.problems.join("; ") },
            ]
        };
        write!(f, "\n{}", Table::new(&["ETCD", "VERSION", "LEADER", "SIZE", "PROBLEMS"], self.etcd.iter().map(row)))?;
        let row = |member: &MemberStatus| {
            let state = member.state.as_ref();
            let load = state.and_then(|state| state.load);
            vec![
                member.name.clone(),
                member.url.clone(),
                match member.is_there {
                    Some(true) => "yes".into(),
                    Some(false) => "NO".into(),
                    None => "unknown".into(),
                },
                or_dash(state.map(|state| state.version.clone())),
                or_dash(state.map(|state| state.followed.to_string())),
                or_dash(member.behind.map(|behind| behind.to_string())),
                or_dash(state.map(|state| state.policy.to_string())),
                or_dash(load.map(|load| load.sessions.to_string())),
                or_dash(load.map(|load| load.verifiers.to_string())),
                or_dash(state.map(|state| utc(state.since))),
            ]
        };
        let head = ["MEMBER", "URL", "THERE", "VERSION", "ENTRY", "BEHIND", "POLICY", "AGENTS", "VERIFIERS", "SINCE"];
        write!(f, "\n{}", Table::new(&head, self.members.iter().map(row)))
    }
}

/// Waits until the members of the cluster have followed everything that the database of `directory` contains, for some
/// seconds at most. Blocks the thread. A process calls this function after it has changed the database while the server
/// is not running.
///
/// # Errors
/// Fails if a file of the directory cannot be read.
pub fn followed(directory: &Directory) -> Result<Followed> {
    let members = Members::read(directory.path(), None)?;
    let Some(cluster) = members.cluster() else { return Ok(Followed::default()) };
    let database = directory.open_database()?;
    let enrolled = database.verifiers()?.into_iter().filter(|verifier| verifier.enrolled.is_some());
    let enrolled: Vec<_> = enrolled.map(|verifier| verifier.verifier).collect();
    Ok(wait_without_server(cluster, database.applied()?, &known(&database)?, &enrolled))
}
