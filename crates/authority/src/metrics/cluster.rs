//! The metrics of a cluster's member.

use shell::metrics::{Labels, Page, label};

/// The cluster as one of its members sees it.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    /// Number of running members.
    pub members: usize,
    /// Number of members that belong to the cluster, running or not.
    pub known: usize,
    /// Number of the last entry of the log that the member's decisions take into account.
    pub followed: u64,
    /// Number of entries of the log that the member's decisions do not take into account yet.
    pub behind: u64,
    /// The age of the state by which the member decides, in seconds.
    pub lag: f64,
    /// Whether the member has contact with a majority of etcd, so that it issues grants and records changes.
    pub is_current: bool,
    /// The time since the last contact, in seconds; 0 while there is contact.
    pub without_contact: f64,
    /// Whether the member renews leases of grants.
    pub renews: bool,
    /// Whether the clock of the member's host agrees with the clocks of the other members.
    pub clock_is_right: bool,
    /// Number of times that etcd has ended the member's lease although the member was running.
    pub lost_leases: u64,
    /// Number of heads that the member has published, and that its audit trails do not contain any more.
    pub lost_heads: usize,
    /// The servers of etcd.
    pub etcd: Vec<EtcdServer>,
}

/// A server of etcd, as a member has last read its state.
#[derive(Clone, Debug, Default)]
pub struct EtcdServer {
    /// The URL at which the member reaches the server.
    pub endpoint: String,
    /// Whether the server answers. If it does not, the other fields have no meaning.
    pub answers: bool,
    /// Whether the server leads the others.
    pub is_leader: bool,
    /// The size of the server's database, in bytes.
    pub size: u64,
    /// The part of the size that is in use, in bytes.
    pub in_use: u64,
    /// The quota of the database, in bytes, if the server says it.
    pub quota: Option<u64>,
    /// Whether the alarm about a full database is raised.
    pub is_full: bool,
    /// The latest revision of etcd's data.
    pub revision: u64,
    /// The revision up to which old values were removed, if the server says it.
    pub compacted: Option<u64>,
}

/// Adds the metrics to a page.
pub(super) fn add(page: &mut Page, cluster: &ClusterSnapshot) {
    page.gauge("cluster_members", "Running members of the cluster, this one included", cluster.members as f64);
    page.gauge("cluster_members_known", "Members that belong to the cluster, running or not", cluster.known as f64);
    page.gauge(
        "cluster_followed",
        "The last entry of the log that decisions take into account",
        cluster.followed as f64,
    );
    page.gauge(
        "cluster_behind",
        "Entries of the log that decisions do not take into account yet",
        cluster.behind as f64,
    );
    page.gauge("cluster_lag_seconds", "The age of the state by which this member decides", cluster.lag);
    let (current, renews) = (f64::from(cluster.is_current), f64::from(cluster.renews));
    page.gauge("cluster_majority", "1 if this member has contact with a majority of etcd, otherwise 0", current);
    page.gauge(
        "cluster_without_contact_seconds",
        "Time since the last contact with a majority of etcd; 0 while there is contact",
        cluster.without_contact,
    );
    page.gauge("cluster_renews", "1 if this member renews leases, otherwise 0", renews);
    page.gauge(
        "cluster_clock",
        "1 if the clock of this host is right; 0 if it is wrong, and the member answers no calls",
        f64::from(cluster.clock_is_right),
    );
    page.counter(
        "cluster_lost_leases",
        "Times that etcd has ended the lease of this member although the member was running",
        cluster.lost_leases,
    );
    page.gauge(
        "cluster_lost_audit_heads",
        "Heads that this member has published, and that its audit trails do not contain any more",
        cluster.lost_heads as f64,
    );
    etcd(page, &cluster.etcd);
}

fn etcd(page: &mut Page, servers: &[EtcdServer]) {
    let of = |server: &EtcdServer| label("server", server.endpoint.clone());
    let up = servers.iter().map(|server| (of(server), f64::from(server.answers)));
    page.gauges("etcd_up", "1 if this server of etcd answers, otherwise 0", up);
    let answers: Vec<_> = servers.iter().filter(|server| server.answers).collect();
    let mut add = |name: &str, help: &str, figure: &dyn Fn(&EtcdServer) -> Option<f64>| {
        let values: Vec<(Labels, f64)> =
            answers.iter().filter_map(|server| Some((of(server), figure(server)?))).collect();
        page.gauges(name, help, values);
    };
    add("etcd_leader", "1 if this server of etcd leads the others, otherwise 0", &|server| {
        Some(f64::from(server.is_leader))
    });
    add("etcd_full", "1 if etcd has raised the alarm about a full database, otherwise 0", &|server| {
        Some(f64::from(server.is_full))
    });
    add("etcd_size_bytes", "The size of etcd's database", &|server| Some(server.size as f64));
    add("etcd_size_in_use_bytes", "The part of etcd's database that is in use", &|server| Some(server.in_use as f64));
    add("etcd_quota_bytes", "The quota of etcd's database", &|server| server.quota.map(|quota| quota as f64));
    add("etcd_revision", "The last revision of etcd", &|server| Some(server.revision as f64));
    add("etcd_compacted_revision", "The revision up to which etcd has removed old values", &|server| {
        server.compacted.map(|compacted| compacted as f64)
    });
}
