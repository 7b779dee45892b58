//! The time from the command that applies a policy until it is in force at every member of a cluster: three authorities
//! over three members of etcd, all on this machine.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. `cluster.apply_ms` is the median time until `vouchsafe
//! authority policy apply` returns. After that, the bench checks that every member has the policy. Beside it stands the
//! time of one write to etcd, which waits for the disks of two of etcd's members.

use authority::cluster::bundle::{self, Etcd as Reach};
use authority::{Directory, Server, admin};
use client::Authority;
use etcd::stage::{Plan, Stage};
use etcd::{Etcd, Op, Txn};
use measure::{Figures, median};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 41;
/// Rounds before those that are counted.
const WARM: usize = 5;
/// Most milliseconds of the median.
const MOST: f64 = 100.0;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() {
    let stage = Stage::start(Plan::of(3)).expect("three members of etcd");
    let etcd = Etcd::connect(&stage.settings()).expect("a client of etcd");
    let room = tempfile::tempdir().expect("a directory");
    let directories = MEMBERS.map(|name| Directory::at(room.path().join(name)));
    let servers = start(&stage, &directories, room.path()).await;
    let [first, ..] = &directories;
    let file = room.path().join("next.toml");
    let (mut applied, mut written) = (Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let text = policy(round);
        std::fs::write(&file, &text).expect("a policy");
        let write = Op::Put { key: "bench".into(), value: round.to_string().into_bytes(), lease: None };
        let write = Txn { success: vec![write], ..Txn::default() };
        let begun = Instant::now();
        tokio::task::block_in_place(|| etcd.txn(&write)).expect("etcd writes");
        let once = begun.elapsed();
        let begun = Instant::now();
        let said = admin::apply_policy(first, Some(&file)).await.expect("the policy is applied");
        let all = begun.elapsed();
        assert!(said.contains("in force at b, c, too"), "{said}");
        for directory in &directories {
            let own = std::fs::read_to_string(directory.policy()).expect("a member's policy");
            assert!(own == text, "{} has another policy", directory.path().display());
        }
        if round >= WARM {
            applied.push(all.as_secs_f64() * 1e3);
            written.push(once.as_secs_f64() * 1e3);
        }
    }
    for server in servers {
        server.stop().await;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!("cluster: load average {}", load.trim());
    let mut figures = Figures::default();
    figures.count("cluster.apply_ms", "ms", median(&applied), Some(MOST));
    figures.count("cluster.apply_p90_ms", "ms", measure::quantile(&applied, 0.9), None);
    figures.count("cluster.etcd_write_ms", "ms", median(&written), None);
    figures.print();
}

/// Starts the three authorities, and waits until all of them may record changes.
async fn start(stage: &Stage, directories: &[Directory; 3], room: &std::path::Path) -> Vec<Server> {
    let [first, others @ ..] = directories;
    // Each member must know its own URL before it starts, so the ports are chosen here.
    let ports = MEMBERS.map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let addresses = ports.each_ref().map(|port| port.local_addr().expect("its address"));
    drop(ports);
    first.init(&["127.0.0.1".into()], addresses[0]).expect("a new authority");
    std::fs::write(first.policy(), policy(0)).expect("a policy");
    let reach = Reach { endpoints: stage.endpoints(), ca: None, certificate: None, key: None };
    let url = |address: SocketAddr| format!("https://{address}");
    bundle::init(first, &reach, MEMBERS[0], &url(addresses[0])).expect("a cluster");
    let mut servers = vec![serve(first).await];
    for (number, directory) in others.iter().enumerate() {
        let (name, address) = (MEMBERS[number + 1], addresses[number + 1]);
        let invitation = room.join(format!("invitation-{name}"));
        bundle::invite(first, name, &[], &url(address), &invitation).expect("an invitation");
        bundle::join(directory, &invitation, Some(address), &[]).expect("a member");
        servers.push(serve(directory).await);
    }
    servers
}

async fn serve(directory: &Directory) -> Server {
    let server = Server::start(directory.clone(), None).await.expect("the server starts");
    let ca = std::fs::read(directory.ca()).expect("the CA's certificate");
    let caller = Authority::new(&format!("https://{}", server.address()), Some(&ca)).expect("a client");
    let begun = Instant::now();
    while let Err(error) = caller.health().await {
        assert!(begun.elapsed() < PATIENCE, "the member does not reach etcd: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server
}

/// Returns a policy of a hundred receivers, which differs from round to round.
fn policy(round: usize) -> String {
    let receiver = |number: usize| {
        format!(
            "[[receivers]]\nname = \"r{number}\"\naddress = \"203.0.113.{number}\"\nservices = \"tcp/22\"\n\
             verifier = \"edge\"\n[[rules]]\naction = \"allow\"\nwho = \"person:p{}\"\nto = \"r{number}\"\n",
            number + round
        )
    };
    (0..100).map(receiver).collect()
}
