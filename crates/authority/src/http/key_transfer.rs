//! Client keys in band (wire.md §5.4). The process `vouchsafe transfer` has the kernel programs. The authority asks it
//! to send a key on the connection on which the client requested the grant. If this process is unavailable, the client
//! gets the key in the HTTPS response.

use crate::http::peer::Peer;
use anyhow::{Context, Result, bail};
use api::Grant;
use api::key_transfer::{HandOver, HandedOver};
use shell::lines;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use zeroize::Zeroize;

/// Time limit for the answer of `vouchsafe transfer`, which runs on this host and only writes to the kernel twice.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length of an answer, in bytes.
const MOST: u64 = 4096;

/// The socket of `vouchsafe transfer`, if one is configured.
pub struct KeyTransfer(Option<PathBuf>);

impl KeyTransfer {
    /// Creates a transfer through the process that listens at `socket`. Without a socket, no key is sent in band.
    pub fn new(socket: Option<PathBuf>) -> Self {
        Self(socket)
    }

    /// Reports whether the authority can send keys in band on this connection: a socket of `vouchsafe transfer` is
    /// configured, and the connection runs over IPv4. Only `vouchsafe transfer` knows whether the client accepts keys.
    pub const fn is_possible(&self, peer: &Peer) -> bool {
        self.0.is_some() && peer.ends.is_some()
    }

    /// Sends a key of zeros in band. The switch's controller then forgets the device's key (wire.md §5.4.4). If the
    /// transfer fails, the controller continues to make tokens with the key, and verifiers drop these tokens.
    pub async fn withdraw(&self, peer: &Peer) {
        let (Some(socket), Some((client, server))) = (&self.0, peer.ends) else { return };
        let question = HandOver { client, server, content: "0".repeat(2 * wire::ls::KEY_TRANSFER_LEN) };
        if !matches!(tokio::time::timeout(PATIENCE, ask(socket, &question)).await, Ok(Ok(true))) {
            tracing::debug!(%client, "the device's switch is not told of the logout");
        }
    }

    /// Sends the key of a pair in band and removes it from `grant`. Returns false, and leaves `grant` unchanged, in
    /// four cases: no process that sends keys is configured; the grant is not a pair; the connection uses IPv6; or the
    /// process did not send the key.
    pub async fn take_over(&self, peer: &Peer, grant: &mut Grant) -> bool {
        let (Some(socket), Some((client, server))) = (&self.0, peer.ends) else { return false };
        // The header of a pair has seven bytes; other grants have sixteen, and their keys are never sent in band.
        if grant.header.len() != 2 * wire::ls::PAIR_LEN {
            return false;
        }
        let mut question = HandOver { client, server, content: format!("{}{}", grant.key, grant.header) };
        let reply = tokio::time::timeout(PATIENCE, ask(socket, &question)).await;
        question.content.zeroize();
        match reply.unwrap_or_else(|_| Err(anyhow::anyhow!("`vouchsafe transfer` did not answer within {PATIENCE:?}")))
        {
            Ok(true) => {
                grant.key.zeroize();
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(%client, "cannot send the key in band, so the client gets it by HTTPS: {error:#}");
                false
            }
        }
    }
}

async fn ask(socket: &Path, question: &HandOver) -> Result<bool> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.with_context(|| format!("cannot connect to `vouchsafe transfer` at {}", socket.display()))?;
    let (reader, mut writer) = stream.into_split();
    writer.write_all(&lines::encode(question)?).await?;
    let answer = lines::read(&mut BufReader::new(reader), MOST).await?;
    match serde_json::from_slice(&answer.context(
        "`vouchsafe transfer` closed the connection: its log says why. Its --user must be the user that the \
             authority runs as",
    )?)? {
        HandedOver::Yes => Ok(true),
        HandedOver::No => Ok(false),
        HandedOver::Failed(why) => bail!("`vouchsafe transfer` failed: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    fn pair() -> Grant {
        Grant {
            header: "01020304050607".into(),
            key: "5a".repeat(28),
            prefix: "192.0.2.1/32".parse().unwrap(),
            receiver: "front".into(),
            rule: "1".into(),
            carrier: "shim".into(),
            sealing: None,
            expires: 2,
            now: 1,
        }
    }

    fn peer(address: &str) -> Peer {
        Peer::new(address.parse().unwrap(), Some("[::ffff:192.0.2.5]:8443".parse().unwrap()))
    }

    /// Runs `take_over` against a socket that always gives this answer; returns the result and the request received.
    async fn hand_over(answer: &str, grant: &mut Grant) -> (bool, HandOver) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let served = async {
            let (reader, mut writer) = listener.accept().await.unwrap().0.into_split();
            let line = lines::read(&mut BufReader::new(reader), MOST).await.unwrap().unwrap();
            writer.write_all(answer.as_bytes()).await.unwrap();
            serde_json::from_slice(&line).unwrap()
        };
        let (client, transfer) = (peer("[::ffff:192.0.2.7]:40000"), KeyTransfer::new(Some(path)));
        tokio::join!(transfer.take_over(&client, grant), served)
    }

    #[tokio::test]
    async fn a_key_that_goes_in_band_is_not_in_the_answer() {
        let mut grant = pair();
        let (taken, question) = hand_over("\"yes\"\n", &mut grant).await;
        assert!(taken && grant.key.is_empty());
        assert_eq!(question.content, format!("{}01020304050607", "5a".repeat(28)));
        assert_eq!(
            (question.client.to_string(), question.server.to_string()),
            ("192.0.2.7:40000".into(), "192.0.2.5:8443".into())
        );
    }

    #[tokio::test]
    async fn a_key_that_does_not_stays_there() {
        for answer in ["\"no\"\n", "{\"failed\":\"no room\"}\n", "{}\n", "\"yes\"", ""] {
            let mut grant = pair();
            let (taken, _) = hand_over(answer, &mut grant).await;
            assert!(!taken && grant.key == pair().key, "{answer:?}");
        }
        let mut grant = pair();
        let nobody = KeyTransfer::new(Some("/nowhere/socket".into()));
        assert!(!nobody.take_over(&peer("192.0.2.7:40000"), &mut grant).await && grant.key == pair().key);
        assert!(!KeyTransfer::new(None).take_over(&peer("192.0.2.7:40000"), &mut grant).await);
    }

    #[tokio::test]
    async fn nothing_is_asked_for_a_grant_of_another_suite_or_by_ipv6() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let transfer = KeyTransfer::new(Some(path));
        let mut other = Grant { header: "00".repeat(16), ..pair() };
        assert!(!transfer.take_over(&peer("192.0.2.7:40000"), &mut other).await);
        assert!(!transfer.take_over(&peer("[2001:db8::7]:40000"), &mut pair()).await);
        let accepted = std::future::poll_fn(|context| std::task::Poll::Ready(listener.poll_accept(context).is_ready()));
        assert!(!accepted.await, "somebody asked");
    }
}
