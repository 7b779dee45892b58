//! A [`Service`] for daemons that have three classes of users. Root and the daemon's own user are allowed to send every
//! request. Certain other users are allowed to send some requests. All remaining users are allowed to send none.

use super::{Admission, Answer, Limits, Role, Service};
use crate::lines;
use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Time for a client to send a request, and again for the client to take the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of concurrent connections of each class of users.
const CONNECTIONS: usize = 32;

/// The users whose requests a daemon answers, besides root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The id of the daemon's own user.
    pub owner: u32,
    /// The ids of users who are allowed to send some requests: those that [`Requests::with_limited`] selects.
    pub limited: Vec<u32>,
}

impl Access {
    /// Returns the access for a daemon that runs as the user of this process. The users in `limited` are allowed to
    /// send some requests.
    pub fn new(limited: Vec<u32>) -> Self {
        Self { owner: nix::unistd::geteuid().as_raw(), limited }
    }

    /// Reports whether this user is allowed to send any request at all.
    pub fn knows(&self, user: u32) -> bool {
        self.class(user) != Class::Stranger
    }

    fn class(&self, user: u32) -> Class {
        match user {
            user if user == 0 || user == self.owner => Class::Full,
            user if self.limited.contains(&user) => Class::Limited,
            _ => Class::Stranger,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Full,
    Limited,
    Stranger,
}

/// A [`Service`] that parses requests of type `R` and replies with an [`Answer`].
pub struct Requests<R, F> {
    role: Role,
    access: Access,
    /// Maximum length of a request, in bytes.
    longest: u64,
    /// The requests that [`Access::limited`] users may send, and the error that they get for other requests.
    limited: (fn(&R) -> bool, &'static str),
    answer: F,
    /// Connection limit for each class of users, so that users with fewer rights can't use up the connections of users
    /// with more rights.
    permits: [Arc<Semaphore>; 3],
    request: PhantomData<fn(R)>,
}

impl<R, F, A> Requests<R, F>
where
    R: DeserializeOwned + Send + 'static,
    F: Fn(R) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Value>> + Send,
{
    /// Creates a service that replies to each request with the result of `answer`. A request has at most `longest`
    /// bytes.
    pub fn new(role: &Role, access: Access, longest: u64, answer: F) -> Self {
        let permits = [(); 3].map(|()| Arc::new(Semaphore::new(CONNECTIONS)));
        let limited: (fn(&R) -> bool, _) = (|_| false, role.allowed);
        Self { role: *role, access, longest, limited, answer, permits, request: PhantomData }
    }

    /// Lets the users in [`Access::limited`] send the requests for which `may` returns true. Any other request of these
    /// users gets the error `refusal`.
    #[must_use]
    pub fn with_limited(self, may: fn(&R) -> bool, refusal: &'static str) -> Self {
        Self { limited: (may, refusal), ..self }
    }

    async fn value(&self, user: u32, request: &[u8]) -> Answer<Value> {
        let request = match serde_json::from_slice(request) {
            Ok(request) => request,
            Err(error) => return Answer::Error(format!("unknown request: {error}")),
        };
        if self.access.class(user) != Class::Full && !(self.limited.0)(&request) {
            return Answer::Error(self.limited.1.to_owned());
        }
        match (self.answer)(request).await {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Error(format!("{error:#}")),
        }
    }
}

impl<R, F, A> Service for Requests<R, F>
where
    R: DeserializeOwned + Send + 'static,
    F: Fn(R) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Value>> + Send,
{
    type Permit = OwnedSemaphorePermit;

    fn limits(&self) -> Limits {
        Limits { request: self.longest, patience: PATIENCE }
    }

    fn admit(&self, user: u32) -> Admission<OwnedSemaphorePermit> {
        let class = self.access.class(user);
        let Ok(permit) = self.permits[class as usize].clone().try_acquire_owned() else {
            return Admission::Full(Vec::new());
        };
        if class != Class::Stranger {
            return Admission::Serve(permit);
        }
        let Role { name, allowed, .. } = self.role;
        let refusal = Answer::<Value>::Error(format!("access to the {name} denied: {allowed}"));
        Admission::Refuse(permit, lines::encode(&refusal).unwrap_or_default())
    }

    async fn answer(&self, user: u32, request: &[u8]) -> Result<Vec<u8>> {
        lines::encode(&self.value(user, request).await)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ask, listen, serve};
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::path::Path;
    use tokio::io::{AsyncWriteExt, BufReader};
    use tokio::net::UnixStream;

    const ROLE: Role = Role { name: "daemon", allowed: "only root may", way_out: "use another --socket" };

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
    enum Request {
        Status,
        Detach,
    }

    async fn echo(request: Request) -> Result<Value> {
        anyhow::ensure!(request == Request::Status, "nothing to detach");
        Ok(serde_json::to_value(request)?)
    }

    async fn send(path: &Path, line: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(line).await.unwrap();
        let answer = lines::read(&mut BufReader::new(&mut stream), 1000).await.unwrap();
        String::from_utf8(answer.unwrap_or_default()).unwrap()
    }

    #[tokio::test]
    async fn requests_and_answers_are_plain_json() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("daemon.sock");
        let listener = listen(&path, &ROLE).unwrap();
        let serving = tokio::spawn(serve(listener, Requests::new(&ROLE, Access::new(Vec::new()), 100, echo)));
        let answer: Value = ask(&path, &ROLE, &Request::Status).await.unwrap().unwrap();
        assert_eq!(answer, serde_json::json!({"request": "status"}));
        let error = ask::<Value>(&path, &ROLE, &Request::Detach).await.unwrap_err();
        assert_eq!(error.to_string(), "nothing to detach");
        assert_eq!(send(&path, b"{\"request\":\"detach\"}\n").await, "{\"error\":\"nothing to detach\"}\n");
        assert!(send(&path, b"{\"request\":\"statsu\"}\n").await.contains("unknown request"));
        assert_eq!(send(&path, &[b' '; 200]).await, "", "longer than a request may be");
        serving.abort();
        let _ = serving.await;
        assert!(ask::<Value>(&path, &ROLE, &Request::Status).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn users_get_the_answers_that_they_may_have() {
        let access = Access { owner: 990, limited: vec![33] };
        let service = Requests::new(&ROLE, access, 100, echo);
        let service = service.with_limited(|request| *request == Request::Status, "you may ask `status` only");
        let (status, detach) = (&b"{\"request\":\"status\"}"[..], &b"{\"request\":\"detach\"}"[..]);
        for user in [0, 990] {
            assert_eq!(service.value(user, detach).await, Answer::Error("nothing to detach".into()));
        }
        assert!(matches!(service.value(33, status).await, Answer::Ok(_)));
        assert_eq!(service.value(33, detach).await, Answer::Error("you may ask `status` only".into()));
        let Admission::Refuse(_, line) = service.admit(1000) else { panic!("a stranger is let in") };
        assert_eq!(line, b"{\"error\":\"access to the daemon denied: only root may\"}\n");
    }

    #[tokio::test]
    async fn strangers_take_no_places_of_others() {
        let service = Requests::new(&ROLE, Access { owner: 990, limited: vec![33] }, 100, echo);
        let taken: Vec<_> = (0..CONNECTIONS).map(|_| service.admit(1000)).collect();
        assert!(matches!(service.admit(1001), Admission::Full(_)));
        assert!(matches!(service.admit(33), Admission::Serve(_)) && matches!(service.admit(0), Admission::Serve(_)));
        drop(taken);
        assert!(matches!(service.admit(1001), Admission::Refuse(..)));
    }
}
