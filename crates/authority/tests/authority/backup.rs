//! Backups: they are made while the server runs, and restored completely or not at all.

use crate::stage::{PASSWORD, Stage, git, login, problem, to};
use authority::admin::backup::{restore, write, write_file};
use authority::storage::Verdict;
use authority::{Directory, Server, admin};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn backup(stage: &Stage) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&stage.directory, &mut bytes, "test").unwrap();
    bytes
}

fn entries(room: &Path) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(room).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[tokio::test]
async fn a_running_server_is_backed_up_and_comes_back() {
    let stage = Stage::start().await;
    let client = stage.client();
    let session = client.login(&login("alice", PASSWORD, None)).await.unwrap().token;
    let code = admin::add_verifier(&stage.directory, "edge-1", false).await.unwrap();
    let token = client.enrol(&code).await.unwrap().token;
    let (alice, verifier) = (client.with_token(&session), client.with_token(&token));
    let keys = verifier.keys(1).await.unwrap().keys;
    // Other clients write during the copy.
    let asking = alice.clone();
    let writer = tokio::spawn(async move {
        for _ in 0..200 {
            asking.grant(&git()).await.unwrap();
        }
    });
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("authority.tar");
    let (directory, path) = (stage.directory.clone(), file.clone());
    tokio::task::spawn_blocking(move || write_file(&directory, &path).unwrap()).await.unwrap();
    writer.await.unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(write_file(&stage.directory, &file).is_err(), "a backup overwrites nothing");

    for keep_sessions in [false, true] {
        let restored = Directory::at(room.path().join(format!("authority-{keep_sessions}")));
        let bytes = std::fs::read(&file).unwrap();
        let heads = restore(&restored, bytes.as_slice(), "test", keep_sessions).unwrap();
        assert!(matches!(admin::verify_audit(&restored, &[]).unwrap(), Verdict::Whole(_)));
        assert_eq!(
            heads[0],
            authority::storage::Database::open(&restored.database()).unwrap().audit_heads().unwrap()[0]
        );
        let modes = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(modes(restored.path()), 0o700);
        for name in entries(restored.path()) {
            assert_eq!(modes(&restored.path().join(&name)), 0o600, "{name:?}");
        }
        let server = Server::start(restored.clone(), None).await.unwrap();
        let ca = std::fs::read(restored.ca()).unwrap();
        let client = client::Authority::new(&format!("https://{}", server.address()), Some(&ca)).unwrap();
        let again = client.with_token(&token).keys(1).await.unwrap().keys;
        assert!(keys.iter().zip(&again).all(|(before, after)| before.key == after.key), "the same master key");
        let known = client.with_token(&session).destinations().await;
        assert_eq!(known.is_ok(), keep_sessions);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_restore_overwrites_nothing() {
    let stage = Stage::start().await;
    let bytes = backup(&stage);
    let before = std::fs::read(stage.directory.path().join("master.key")).unwrap();
    let error = restore(&stage.directory, bytes.as_slice(), "test", false).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error:#}");
    assert_eq!(std::fs::read(stage.directory.path().join("master.key")).unwrap(), before);
}

#[tokio::test]
async fn what_is_not_whole_is_refused_and_leaves_nothing() {
    let mut stage = Stage::start().await;
    let alice = stage.login("alice").await;
    alice.grant(&git()).await.unwrap();
    alice.grant(&to("203.0.113.10", 17, 443)).await.unwrap();
    problem(alice.grant(&to("203.0.113.10", 6, 80)).await);
    stage.server.take().unwrap().stop().await;
    let good = backup(&stage);

    let forged = |name: &str| {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(1);
        header.set_mode(0o600);
        header.set_cksum();
        archive.append(&header, &b"x"[..]).unwrap();
        archive.into_inner().unwrap()
    };
    let connection = rusqlite::Connection::open(stage.directory.database()).unwrap();
    connection.execute_batch("DROP TRIGGER audit_is_not_changed").unwrap();
    connection.execute("UPDATE audit SET person = 'bob' WHERE event = 'granted'", []).unwrap();
    drop(connection);
    let tampered = backup(&stage);
    let room = tempfile::tempdir().unwrap();
    for (what, bytes, why) in [
        ("half of one", good[..good.len() / 2].to_vec(), "damaged"),
        ("no backup", b"not a tar file".repeat(100), "is damaged"),
        ("nothing", Vec::new(), "is incomplete"),
        ("a way out", forged("../outside"), "is not a backup: it contains"),
        ("a whole path", forged("/tmp/outside"), "is not a backup: it contains"),
        ("a changed audit trail", tampered, "its audit trail failed verification"),
    ] {
        let wanted = Directory::at(room.path().join("authority"));
        let error = restore(&wanted, bytes.as_slice(), "test", false).unwrap_err();
        assert!(format!("{error:#}").contains(why), "{what}: {error:#}");
        assert!(entries(room.path()).is_empty(), "{what}");
    }
    assert!(restore(&Directory::at(room.path().join("authority")), good.as_slice(), "test", false).is_ok());
}
