//! Tests of the daemon's start while its authority does not answer, and of its notifications to the service manager.

use super::stage::*;
use nix::sys::signal::Signal;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

#[test]
fn a_verifier_attaches_from_what_it_knows_before_it_hears_from_its_authority() {
    act(|mut stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        stage.stop_authority().await;
        // This listener accepts connections and never sends a byte.
        let _silent = TcpListener::bind(stage.address).unwrap();
        let notified = stage.room.path().join("notify");
        let manager = UnixDatagram::bind(&notified).unwrap();
        manager.set_read_timeout(Some(SOON)).unwrap();
        stage.environment = vec![("NOTIFY_SOCKET".into(), notified.display().to_string())];
        assert!(stage.connects(SSH));

        let _verifier = stage.spawn(&[]).await;
        let started = Instant::now();
        until("an attachment", || stage.links().filter(|links| links == &["eth0"])).await;
        let took = started.elapsed();
        // Loading the programs takes a fraction of a second. A daemon that first asked the authority would wait for
        // that connection to fail.
        assert!(took < Duration::from_secs(3), "attached after {took:?}");
        let mut room = [0; 512];
        loop {
            let length = manager.recv(&mut room).expect("READY=1 in time");
            let said = String::from_utf8_lossy(&room[..length]).into_owned();
            if said.lines().any(|line| line == "READY=1") {
                break;
            }
        }
        assert!(!stage.connects(SSH), "ready, and not protected");
    });
}

#[test]
fn the_service_manager_hears_of_readiness_only_once_the_programs_are_attached() {
    act(|mut stage| async move {
        let notified = stage.room.path().join("notify");
        let manager = UnixDatagram::bind(&notified).unwrap();
        manager.set_nonblocking(true).unwrap();
        stage.environment = vec![("NOTIFY_SOCKET".into(), notified.display().to_string())];
        // With neither a cache nor an answer, the daemon cannot attach anything.
        stage.run(&[]).await;
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        while manager.recv(&mut [0; 512]).is_ok() {}
        stage.stop_authority().await;
        std::fs::remove_file(stage.directory().join("cache.json")).unwrap();
        let mut verifier = stage.spawn(&[]).await;
        assert_eq!(verifier.end().await.code(), Some(2));
        let mut room = [0; 512];
        while let Ok(length) = manager.recv(&mut room) {
            assert!(!String::from_utf8_lossy(&room[..length]).contains("READY=1"), "ready without an attachment");
        }
    });
}
