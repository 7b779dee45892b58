use super::*;
use crate::state::stage::{Stage, git, soon};
use crate::storage::verifiers_line;
use futures_util::FutureExt;

fn caller(id: &str) -> VerifierCaller {
    VerifierCaller { token: [0; 32], id: id.into() }
}

/// Returns a part of the authority.
fn part<P>(authority: &Arc<Authority>) -> Part<P>
where
    Authority: AsRef<Arc<P>>,
{
    Part(AsRef::<Arc<P>>::as_ref(&**authority).clone())
}

async fn configuration(authority: &Arc<Authority>, id: &str) -> bool {
    let (policy, segments) = (part(authority), part(authority));
    let (storage, queue) = (part(authority), part(authority));
    config(part(authority), policy, segments, storage, queue, State(authority.clone()), caller(id)).await.is_ok()
}

/// Makes all calls of a verifier that read the database.
async fn calls(authority: &Arc<Authority>, id: &str) {
    assert!(configuration(authority, id).await);
    let path = Path("0000000000000001".into());
    let unknown =
        grant_owner(part(authority), part(authority), part(authority), part(authority), caller(id), path).await;
    assert!(matches!(unknown, Err(Problem::NotFound(_))));
    let live = Body(LiveFlows { handles: vec![1] });
    assert!(flows(part(authority), part(authority), part(authority), caller(id), live).await.is_ok());
    let api::GrantRequest { address, protocol, port, .. } = git();
    let (groups, tags) = (Vec::new(), Vec::new());
    let person = "alice".into();
    let request = ExplainRequest { person, device: None, groups, tags, source: None, address, protocol, port };
    drop(explain(part(authority), part(authority), part(authority), part(authority), caller(id), Body(request)).await);
}

/// A thief who uses a verifier's credentials delays neither the authority's own work, such as announcements of
/// revocations, nor other verifiers.
#[tokio::test]
async fn what_a_verifier_asks_waits_in_its_own_queue() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let own = authority.storage.hold("");
    soon(calls(authority, "edge-1")).await;
    drop(own);
    let _held = authority.storage.hold(&verifiers_line("edge-1"));
    let stolen = tokio::spawn({
        let authority = authority.clone();
        async move { calls(&authority, "edge-1").await }
    });
    soon(calls(authority, "edge-2")).await;
    assert!(soon(authority.sync.run()).await.is_ok());
    assert!(!stolen.is_finished());
    stolen.abort();
}

#[tokio::test]
async fn a_verifier_waits_for_its_turn_as_accounts_do() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let _turns = futures_util::future::join_all((0..4).map(|_| authority.queue.turn_of_verifier("edge-1"))).await;
    let mut call = Box::pin(configuration(authority, "edge-1"));
    assert!(call.as_mut().now_or_never().is_none());
    soon(calls(authority, "edge-2")).await;
    assert!(call.as_mut().now_or_never().is_none());
}
