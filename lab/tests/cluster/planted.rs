//! The check of histories finds a cluster that is none: two authorities from one backup, of which each goes on alone.
//!
//! The clients and their records are the same as in the test of the cluster.

use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use lab::net::veth;
use lab::process::output;
use lab::world::{AUTHORITY, AUTHORITY_PORT, Authority};
use lab::{Namespace, poll, test};

use crate::chance::Chance;
use crate::history::PARTS;
use crate::probers::{Place, Recorder};
use crate::stage::{part, policy};
use crate::{Ends, alone};

const OTHER_PORT: u16 = AUTHORITY_PORT + 1;

#[test]
fn two_authorities_that_do_not_follow_each_other_are_found() {
    let _alone = alone();
    test(|| {
        let (host, probe) = (Namespace::new("host")?, Namespace::new("probe")?);
        veth(&host, "eth0", &format!("{AUTHORITY}/24"), &probe, "eth0", "198.51.100.1/24")?;
        let people: Vec<_> = (0..PARTS).map(part).collect();
        let people: Vec<_> = people.iter().map(String::as_str).collect();
        let one = Authority::make(&host, &policy(0, &[true; PARTS]), "", &people)?;
        let (backup, dir) = (host.dir().join("backup"), host.dir().join("copy"));
        one.command(&["backup"], &[&backup.to_string_lossy()])?;
        output(Command::new(lab::vouchsafe()).args(["authority", "restore", "--dir"]).arg(&dir).arg(&backup))?;
        let mut run = host.command(lab::vouchsafe());
        run.args(["authority", "run", "--listen", &format!("{AUTHORITY}:{OTHER_PORT}"), "--dir"]).arg(&dir);
        let mut other = host.start(run)?;
        other.wait_for("listening on", lab::world::SOON)?;

        let ca = std::fs::read(one.ca())?;
        let recorder = Recorder::new(String::new(), false);
        thread::scope(|scope| {
            let _ends = Ends(&recorder.end);
            for port in [AUTHORITY_PORT, OTHER_PORT] {
                let url = format!("https://{AUTHORITY}:{port}");
                let place = Place { name: url.clone(), url, ca: ca.as_slice().into() };
                recorder.prober(scope, &probe, 0, place, |_| true);
            }
            let grants = |least| poll(Duration::from_secs(60), || recorder.figures().0 >= least);
            ensure!(grants(20), "no grants");
            ensure!(recorder.check().is_ok(), "a history without changes is that of one authority");
            let mut chance = Chance::new(1);
            let apply = |file: &str| one.command(&["policy", "apply"], &[file]).is_ok();
            recorder.apply_once(&mut chance, "one of two", apply, host.dir())?;
            let seen = recorder.figures().0;
            ensure!(grants(seen + 20), "no more grants");
            Ok(())
        })?;
        let found = recorder.check().err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(found.contains("is not that of one authority") && found.contains("Granted(0)"), "not found: {found}");
        println!("{found}");
        Ok(())
    });
}
