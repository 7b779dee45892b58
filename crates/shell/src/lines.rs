//! JSON over a UNIX socket: one object per line in each direction. The listener has to authorise its peers.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use tokio::net::UnixListener;

/// Listens at `path`, where every user can connect. Replaces the socket of a daemon that no longer runs.
///
/// # Errors
///
/// Fails if the socket can't be made, or if another daemon of this `role` listens at `path`. In the latter case, the
/// error contains the advice `way_out`.
pub fn listen(path: &Path, role: &str, way_out: &str) -> Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another {role} listens at {} already: {way_out}", path.display());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| {
                format!("cannot remove the earlier socket {0}: remove it, then start the {role} again", path.display())
            });
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    fs::set_permissions(path, Permissions::from_mode(0o666))
        .with_context(|| format!("cannot make {} accessible to all users", path.display()))?;
    Ok(listener)
}

/// Encodes a message as one line of JSON, with the newline.
///
/// # Errors
///
/// Fails if the message can't be represented as JSON.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads the next line; `None` if the peer has closed the connection.
///
/// # Errors
///
/// Fails if the line, with its newline, is longer than `most` bytes, or if the connection fails or ends within the
/// line.
pub async fn read(reader: &mut (impl AsyncBufRead + Unpin), most: u64) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(most).read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => bail!("the message is too long, or the connection ended before its newline"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_have_an_end_and_a_limit() {
        let mut sent: &[u8] = &[encode(&1).unwrap(), encode(&"two").unwrap(), b"3".to_vec()].concat();
        assert_eq!(read(&mut sent, 100).await.unwrap().unwrap(), b"1\n");
        assert!(read(&mut &b"12345678\n"[..], 8).await.is_err());
        assert_eq!(read(&mut sent, 100).await.unwrap().unwrap(), b"\"two\"\n");
        assert!(read(&mut sent, 100).await.is_err());
        assert_eq!(read(&mut sent, 100).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_dead_socket_gives_way_and_a_live_one_does_not() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("run/agent.sock");
        let first = listen(&path, "agent", "use another --socket").unwrap();
        let error = listen(&path, "agent", "use another --socket").unwrap_err().to_string();
        assert!(error.starts_with("another agent listens at") && error.ends_with("use another --socket"), "{error}");
        drop(first);
        assert!(listen(&path, "agent", "").is_ok());
    }
}
