use super::*;
use crate::state::tests::{state, withdrawal};
use api::{RevokedGrant, Withdrawal};

/// A role that records what it is to do.
#[derive(Default)]
struct Recorder {
    applied: Vec<Vec<Withdrawal>>,
    events: usize,
    marks: Vec<u64>,
    fails: bool,
}

impl Role for Recorder {
    const NAME: &'static str = "recorder";

    fn apply(&mut self, state: &State, _before: &State) -> Result<()> {
        self.applied.push(state.config.withdrawn.clone());
        anyhow::ensure!(!self.fails, "no room");
        Ok(())
    }

    fn event(&mut self, event: Event, state: &mut State) {
        self.events += 1;
        match event {
            Event::Withdrawn { withdrawn } => state.withdraw(&withdrawn, now()),
            Event::Mark { mark } => self.marks.push(mark),
            _ => {}
        }
    }
}

/// A follower of an authority that nobody can reach.
struct Scene {
    follower: Follower,
    role: Recorder,
    room: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let authority = Authority::new("https://127.0.0.1:9", None).unwrap().with_token("x");
        let (folder, state, confirms) = (Folder::at(room.path()), state(now()), Confirm::Nothing);
        let trouble = Some("the authority does not answer".to_owned());
        let follower = Follower::start(Start { authority, folder, state, trouble, confirms }).unwrap();
        Self { follower, role: Recorder::default(), room }
    }

    fn handle(&mut self, kind: Kind) {
        self.follower.handle(News(kind), &mut self.role);
    }

    fn event(&mut self, event: Event) {
        self.handle(Kind::Event(Box::new(Ok(event))));
    }

    /// Handles the answer to the request under way.
    fn fetched(&mut self, answer: Result<State, Error>) {
        self.follower.sync = None;
        self.handle(Kind::Fetched(Box::new(answer)));
    }

    fn health(&self) -> Health {
        self.follower.health.borrow().clone()
    }

    fn until_next_sync(&self) -> u64 {
        (self.follower.next_sync - Instant::now()).as_secs_f64().round() as u64
    }
}

fn far() -> u32 {
    now() as u32 + 1000
}

fn unreachable() -> Result<State, Error> {
    Err(Error::Unreachable("no route".into()))
}

#[tokio::test]
async fn an_event_during_a_request_is_not_undone_by_the_answer() {
    let mut scene = Scene::new();
    scene.event(Event::Hello);
    assert!(scene.follower.sync.is_some());
    scene.event(Event::Withdrawn { withdrawn: vec![withdrawal(far())] });
    scene.follower.state_mut().revoke(&[RevokedGrant { handle: 7, expires: far(), holder: 0 }], now());
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.applied, [[withdrawal(far())]]);
    assert_eq!(scene.follower.state().config.revoked.len(), 1);
    assert_eq!(scene.role.events, 2);
}

#[tokio::test]
async fn a_change_during_a_request_causes_another() {
    let mut scene = Scene::new();
    scene.event(Event::Hello);
    scene.event(Event::Policy);
    scene.event(Event::Policy);
    scene.fetched(Ok(state(now())));
    assert!(scene.follower.sync.is_some());
    scene.fetched(Ok(state(now())));
    assert!(scene.follower.sync.is_none());
    assert_eq!(scene.until_next_sync(), 900, "a quarter of an epoch");
}

#[tokio::test]
async fn a_mark_waits_for_the_state_that_was_announced_before_it() {
    let mut scene = Scene::new();
    scene.event(Event::Mark { mark: 1 });
    assert_eq!(scene.role.marks, [1], "nothing was announced");

    scene.event(Event::Policy);
    scene.event(Event::Mark { mark: 2 });
    assert_eq!(scene.role.marks, [1]);
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.marks, [1, 2]);

    // The request in progress began before the second change.
    scene.event(Event::Policy);
    scene.event(Event::Policy);
    scene.event(Event::Mark { mark: 3 });
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.marks, [1, 2]);
    scene.fetched(unreachable());
    scene.role.fails = true;
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.marks, [1, 2], "no request has succeeded");
    scene.role.fails = false;
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.marks, [1, 2, 3]);
}

#[tokio::test]
async fn a_mark_of_an_earlier_stream_is_void() {
    let mut scene = Scene::new();
    scene.event(Event::Policy);
    scene.event(Event::Mark { mark: 1 });
    scene.event(Event::Hello);
    scene.event(Event::Mark { mark: 2 });
    scene.fetched(Ok(state(now())));
    scene.fetched(Ok(state(now())));
    assert_eq!(scene.role.marks, [2]);
}

#[tokio::test]
async fn failures_leave_the_state_in_force_and_make_pauses_longer() {
    let mut scene = Scene::new();
    let pauses = [1, 2, 4].map(|_| {
        scene.fetched(unreachable());
        scene.until_next_sync()
    });
    assert_eq!(pauses, [1, 2, 4]);
    assert!(scene.role.applied.is_empty());
    let health = scene.health();
    assert_eq!((health.read, health.trouble.as_deref()), (None, Some("cannot reach the authority: no route")));
    scene.fetched(Ok(state(now())));
    let health = scene.health();
    assert!(health.read.is_some() && health.trouble.is_none());
    scene.fetched(unreachable());
    assert_eq!(scene.until_next_sync(), 1);
}

#[tokio::test]
async fn a_state_that_cannot_be_applied_is_asked_for_again_soon() {
    let mut scene = Scene::new();
    scene.role.fails = true;
    scene.fetched(Ok(state(now())));
    assert_eq!((scene.health().trouble.as_deref(), scene.until_next_sync()), (Some("no room"), 30));
    assert!(scene.health().read.is_some());
}

#[tokio::test]
async fn a_role_that_is_refused_asks_again_later() {
    let mut scene = Scene::new();
    scene.event(Event::Hello);
    assert!(scene.health().connected);
    scene.handle(Kind::Event(Box::new(Err(Error::NotLoggedIn))));
    assert!(!scene.health().connected && scene.health().trouble.is_some());
    assert!(scene.follower.events.is_none() && scene.follower.reconnect.is_some());
    scene.handle(Kind::Reconnect);
    assert!(scene.follower.events.is_some() && scene.follower.reconnect.is_none());
}

#[tokio::test]
async fn a_silent_authority_counts_as_lost_until_it_greets_again() {
    let mut scene = Scene::new();
    scene.event(Event::Hello);
    scene.handle(Kind::Tick);
    assert!(scene.health().connected);
    scene.follower.last_received -= SILENCE + TICK;
    scene.handle(Kind::Tick);
    assert!(!scene.health().connected);
    scene.event(Event::Hello);
    assert!(scene.health().connected);
}

#[tokio::test]
async fn the_reason_is_told_if_only_the_event_stream_is_down() {
    let mut scene = Scene::new();
    scene.fetched(Ok(state(now())));
    // Nobody listens at the address of the authority.
    let mut trouble = scene.follower.events.as_ref().unwrap().trouble();
    drop(trouble.wait_for(Option::is_some).await.unwrap());
    scene.handle(Kind::Tick);
    assert_eq!(scene.health().trouble, None, "the stream may be up again within moments");
    scene.follower.last_received -= SILENCE + TICK;
    scene.handle(Kind::Tick);
    let told = scene.health().trouble.unwrap_or_default();
    assert!(told.starts_with("cannot reach the authority: "), "{told}");
}

#[tokio::test]
async fn the_next_run_knows_what_events_said() {
    let mut scene = Scene::new();
    let folder = Folder::at(scene.room.path());
    scene.event(Event::Withdrawn { withdrawn: vec![withdrawal(far())] });
    assert_eq!(State::load(&folder, "edge-1").unwrap().config.withdrawn, []);
    scene.handle(Kind::Tick);
    scene.event(Event::Withdrawn { withdrawn: vec![withdrawal(far() + 1000)] });
    scene.follower.save_last().await;
    let withdrawn = State::load(&folder, "edge-1").unwrap().config.withdrawn;
    assert!(withdrawn.iter().map(|one| one.until).eq([far() + 1000]), "{withdrawn:?}");
}

#[tokio::test]
async fn the_authority_is_asked_at_once_and_again_after_each_failure() {
    let mut scene = Scene::new();
    for _ in 0..2 {
        // Nobody listens: the request fails, and the next one follows after a pause.
        while scene.follower.sync.is_none() {
            let news = scene.follower.next().await;
            scene.follower.handle(news, &mut scene.role);
        }
        while scene.follower.sync.is_some() {
            let news = scene.follower.next().await;
            scene.follower.handle(news, &mut scene.role);
        }
        assert!(scene.health().trouble.is_some());
    }
    assert_eq!(scene.until_next_sync(), 2);
}

#[tokio::test]
async fn a_role_whose_token_is_refused_is_told_to_enrol_and_not_to_log_in() {
    let mut scene = Scene::new();
    for answer in [Kind::Fetched(Box::new(Err(Error::NotLoggedIn))), Kind::Event(Box::new(Err(Error::NotLoggedIn)))] {
        scene.follower.health.send_modify(|health| health.trouble = None);
        scene.handle(answer);
        let trouble = scene.health().trouble;
        assert_eq!(trouble.as_deref(), Some("the authority does not know this recorder: enrol it again"));
    }
}
