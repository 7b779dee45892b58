//! etcd's database is full: nothing new can be written, everything that needs no writing goes on, and an operator gets
//! out of it as the documents say.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::service::{call, exchange};
use lab::world::{DARK4, ECHO, FRONT4, SOON};
use lab::{poll, test};

use crate::stage::{Host, Stage, lock};
use crate::{alone, same_everywhere};

/// etcd's limit in this scenario. The default is 2 GiB.
const QUOTA: &str = "--quota-backend-bytes=16777216";
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_secs(4);

/// Writes junk until etcd refuses more. Returns its last answer.
fn fill(host: &Host) -> Result<String> {
    let file = host.namespace.dir().join("junk");
    std::fs::write(&file, vec![b'x'; 1_000_000])?;
    let etcd = lock(&host.etcd);
    for _ in 0..100 {
        let mut put = host.namespace.command("etcdctl");
        put.env("ETCDCTL_API", "3").args(["--endpoints", &etcd.url(), "put", "junk"]);
        let output = put.stdin(Stdio::from(std::fs::File::open(&file)?)).output().context("etcdctl")?;
        if !output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    bail!("etcd took a hundred megabytes")
}

#[test]
fn a_full_etcd_stops_only_what_is_new_and_is_emptied() {
    let _alone = alone();
    test(|| {
        let stage = Stage::new(&[QUOTA])?;
        let client = &stage.clients[0];
        let mut flow = call(client, Stage::at(FRONT4, ECHO), SOON)?;
        call(client, Stage::at(DARK4, 2000), SOON).context("a new grant before")?;
        let full = fill(&stage.hosts[0])?;
        ensure!(full.contains("space exceeded"), "{full}");
        let filled = Instant::now();

        // Only a new grant has to be recorded. A grant of ten seconds is renewed several times in this time.
        while filled.elapsed() < Duration::from_secs(15) {
            exchange(&mut flow).context("a flow while etcd is full")?;
            call(client, Stage::at(FRONT4, ECHO), Duration::from_secs(5)).context("a held grant while etcd is full")?;
            // One grant admits a thousand flows.
            std::thread::sleep(Duration::from_millis(100));
        }
        ensure!(call(client, Stage::at(DARK4, 2001), QUIET).is_err(), "a new grant was given that is recorded nowhere");
        let said = stage.hosts[1].status()?;
        ensure!(said.to_string().contains("no space"), "`cluster status` doesn't name the alarm: {said}");

        // docs/cluster.md: forget old revisions, give the space back, and end the alarm.
        stage.compact()?;
        for host in &stage.hosts {
            lock(&host.etcd).ctl(&["defrag"])?;
        }
        lock(&stage.hosts[0].etcd).ctl(&["alarm", "disarm"])?;
        let port = |number: u16| -> SocketAddr { Stage::at(DARK4, 3000 + number) };
        let mut number = 0;
        let works = poll(SOON, || {
            number += 1;
            call(client, port(number), Duration::from_secs(5)).is_ok()
        });
        ensure!(works, "no new grant after the alarm was disarmed");
        exchange(&mut flow).context("the flow that was there")?;
        same_everywhere(&stage)
    });
}
