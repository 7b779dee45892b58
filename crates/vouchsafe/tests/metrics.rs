//! The metrics of all roles are those that the dashboard draws, the alerts use and docs/operations.md explains.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use verifier::view;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns a page of each role on which no metric is empty.
fn pages() -> [String; 4] {
    let calls = authority::metrics::counters::Metrics::default();
    calls.note("/v1/grants", "ok", 0.01);
    let heads = authority::storage::Trail::ALL.map(|trail| authority::storage::Head { trail, id: 7, hash: [1; 32] });
    let server = authority::metrics::cluster::EtcdServer {
        answers: true,
        quota: Some(2 << 30),
        compacted: Some(1),
        ..Default::default()
    };
    let snapshot = authority::metrics::counters::Snapshot {
        heads: heads.to_vec(),
        datagrams: vec![("given", 1)],
        grant_datagrams: vec![("given", 1)],
        cluster: Some(authority::metrics::cluster::ClusterSnapshot { etcd: vec![server], ..Default::default() }),
        webhooks: vec![authority::webhook::WebhookState::default()],
        ..Default::default()
    };
    let counter = || vec![view::Counter { name: "flow".into(), packets: 1 }];
    let drops = view::Drops {
        reasons: counter(),
        passed: counter(),
        opened: counter(),
        tunnel: Vec::new(),
        samples_lost: 0,
        observing: false,
        samples: Vec::new(),
    };
    let interface = view::Interface {
        name: "eth0".into(),
        hook: "xdp".into(),
        mode: "native".into(),
        why: String::new(),
        driver: None,
    };
    let peer = view::Peer {
        address: "gw2:8446".into(),
        connected: true,
        trouble: None,
        advertised: 1,
        refused: 0,
        gap_us: Some(700),
        gap_max_us: Some(900),
    };
    let status = view::Status {
        verifier: "edge".into(),
        instance: "main".into(),
        state: "protecting".into(),
        trial_left: None,
        interfaces: vec![interface],
        inside: Vec::new(),
        not_attached: Vec::new(),
        mark: None,
        peers: vec![peer],
        peers_heard: Vec::new(),
        authority: "https://authority".into(),
        in_use: None,
        authorities: Vec::new(),
        connected: true,
        trouble: None,
        read: Some(1000),
        keys_until: Some(5000),
        epoch_length: 3600,
        max_lifetime: 3600,
        optional: Vec::new(),
        extended: view::Extended { services: Vec::new(), networks: Vec::new(), crowded: false },
        outside: Vec::new(),
        protected: Vec::new(),
        tables: vec![view::Table { name: "flows, IPv4".into(), used: Some(1), max: 16, bytes: 104 }],
        proofs: Some(view::Proofs {
            endpoints: Vec::new(),
            interfaces: Vec::new(),
            not_attached: Vec::new(),
            withdrawn: 1,
            keys_until: None,
            passed: vec![view::Counter { name: "remembered".into(), packets: 1 }],
            reasons: vec![view::Counter { name: "bad_tag".into(), packets: 1 }],
        }),
        owners: 1,
        tunnel_queues: Vec::new(),
        organisations: vec![view::Organisation {
            name: "acme".into(),
            verifier: "edge".into(),
            authority: "https://acme".into(),
            loaded: true,
            connected: true,
            trouble: None,
            read: Some(1000),
            keys_until: Some(5000),
            closed: false,
            networks: Vec::new(),
            services: Vec::new(),
            protected: 1,
            refused: Vec::new(),
            tables: Vec::new(),
        }],
    };
    let agent = agent::metrics::Snapshot { counters: BTreeMap::from([("tokens".into(), 1)]), ..Default::default() };
    [
        authority::metrics::counters::page(&calls, &snapshot).text(),
        verifier::metrics::page(&status, &drops, 1010).text(),
        agent::metrics::page(&agent).text(),
        svtep::metrics::page(&endpoint(), 1010).text(),
    ]
}

fn endpoint() -> svtep::view::Status {
    let counter = || vec![svtep::view::Counter::new("sent", 1)];
    let tenant = svtep::view::Tenant {
        interface: "tap0".into(),
        id: 1,
        network: "blue".into(),
        vni: 100,
        addresses: Vec::new(),
        not_attached: None,
        service: "alice".into(),
        logged_in: true,
        trouble: None,
        segments: 1,
        refused: None,
    };
    svtep::view::Status {
        verifier: "host-1".into(),
        instance: "main".into(),
        authority: "https://authority".into(),
        in_use: None,
        authorities: Vec::new(),
        connected: true,
        trouble: None,
        read: Some(1000),
        keys_until: Some(5000),
        closed: false,
        withdrawn: 1,
        underlay: "eth0".into(),
        mtu: 1500,
        addresses: Vec::new(),
        tenants: vec![tenant],
        open: 1,
        paths: Vec::new(),
        path_changes: 1,
        answers: counter(),
        consents: 1,
        packets: counter(),
        passed: counter(),
        reasons: counter(),
    }
}

/// Returns the names of all samples.
fn samples() -> BTreeSet<String> {
    let pages = pages().concat();
    let lines = pages.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// Returns the names in a text that begin with `vouchsafe_` and a role.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let roles = ["vouchsafe_authority_", "vouchsafe_verifier_", "vouchsafe_agent_", "vouchsafe_svtep_"];
    words.filter(|word| roles.iter().any(|role| word.starts_with(role))).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

#[test]
fn the_dashboard_draws_metrics_that_exist() {
    let text = read("packaging/grafana/vouchsafe.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let asked: BTreeSet<_> = targets.flat_map(|target| named(target["expr"].as_str().unwrap())).collect();
    let missing: Vec<_> = asked.difference(&samples()).cloned().collect();
    assert!(missing.is_empty(), "no role has {missing:?}");
    // Everything that is measured is drawn, except the parts of histograms.
    let drawn = |name: &String| asked.contains(name) || name.contains("_call_seconds");
    let forgotten: Vec<_> = samples().into_iter().filter(|name| !drawn(name)).collect();
    assert!(forgotten.is_empty(), "nowhere drawn: {forgotten:?}");
}

/// Returns the alerts in the rules: for each its name, its expression, and its other lines.
fn alerts() -> Vec<(String, String, String)> {
    let text = read("packaging/prometheus/vouchsafe.rules.yml");
    let of_alert = |part: &str| {
        let (name, rest) = part.split_once('\n').unwrap();
        let line = rest.lines().find_map(|line| line.trim().strip_prefix("expr: ")).expect(name);
        (name.to_owned(), line.to_owned(), rest.to_owned())
    };
    text.split("- alert: ").skip(1).map(of_alert).collect()
}

#[test]
fn alerts_use_metrics_that_exist() {
    let (alerts, samples) = (alerts(), samples());
    assert!(alerts.len() > 20, "only {} alerts", alerts.len());
    let names: BTreeSet<_> = alerts.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(names.len(), alerts.len(), "two alerts have one name");
    for (name, expression, rest) in &alerts {
        let asked = named(expression);
        assert!(!asked.is_empty(), "{name} asks for no metric of this program");
        let missing: Vec<_> = asked.difference(&samples).collect();
        assert!(missing.is_empty(), "{name}: no role has {missing:?}");
        for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
            let count = |sign: char| expression.matches(sign).count();
            assert_eq!(count(open), count(close), "{name}: {expression}");
        }
        for part in ["severity: ", "summary: ", "description: "] {
            assert_eq!(rest.lines().filter(|line| line.trim().starts_with(part)).count(), 1, "{name}: {part}");
        }
    }
    // docs/operations.md says what to do about each of them.
    let text = read("docs/operations.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `Vouchsafe")?.split_once('`'));
    let explained: BTreeSet<_> = rows.map(|(name, _)| format!("Vouchsafe{name}")).collect();
    assert_eq!(explained, names);
}

#[test]
fn operations_explains_every_metric() {
    let text = read("docs/operations.md");
    let rows =
        text.lines().filter(|line| line.starts_with("| `vouchsafe_")).map(|line| line.split('|').nth(1).unwrap());
    let explained: BTreeSet<_> = rows.flat_map(named).collect();
    let base = |name: &String| {
        let histogram = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
        histogram.unwrap_or(name).to_owned()
    };
    assert_eq!(explained, samples().iter().map(base).collect());
}

#[test]
fn no_metric_says_who_somebody_is() {
    for page in pages() {
        assert!(page.ends_with("# EOF\n"));
        assert!(!page.contains("person") && !page.contains("alice"));
    }
}
