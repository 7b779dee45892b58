//! A client of several authorities, which fail in turn.

mod host;

use api::{Event, Login};
use client::{Asker, Authority, Bounds, Error, EventStream};
use host::{Ca, Host, Mode, Porter};
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Limit for what takes less than a second on an idle machine. It is below every time limit of the client that would
/// hide that it does not ask another authority.
const SOON: Duration = Duration::from_secs(4);
/// Limit for everything else.
const LATE: Duration = Duration::from_secs(60);

/// A cluster, and a client that knows its members and was made for the first.
struct Stage<const N: usize> {
    ca: Ca,
    hosts: [Host; N],
    client: Authority,
}

impl<const N: usize> Stage<N> {
    async fn new() -> Self {
        let ca = Ca::new();
        let mut hosts = Vec::new();
        for _ in 0..N {
            hosts.push(Host::start(&ca).await);
        }
        let all: Vec<_> = hosts.iter().collect();
        hosts.iter().for_each(|host| host.set_members(&all));
        let client = Authority::new(&hosts[0].url, Some(ca.pem.as_bytes())).unwrap().with_token("secret");
        client.destinations().await.unwrap();
        assert_eq!(client.members().all, hosts.iter().map(|host| host.url.clone()).collect::<Vec<_>>());
        let Ok(hosts) = hosts.try_into() else { unreachable!("there are N hosts") };
        Self { ca, hosts, client }
    }

    /// Makes a call, which has to succeed soon.
    async fn call(&self) {
        let began = Instant::now();
        self.client.destinations().await.unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }

    async fn wait_until_used(&self, host: usize) {
        let is_used = || self.client.members().in_use == self.hosts[host].url;
        let began = Instant::now();
        while !is_used() {
            assert!(began.elapsed() < LATE, "{:?}", self.client.members());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn next(events: &mut EventStream) -> Event {
    timeout(LATE, events.next()).await.expect("an event").unwrap()
}

fn login() -> Login {
    Login { person: "alice".into(), password: "x".into(), totp: None, device: "laptop".into() }
}

#[tokio::test]
async fn calls_go_to_those_that_live() {
    let stage = Stage::<3>::new().await;
    stage.hosts[0].kill().await;
    stage.call().await;
    stage.wait_until_used(1).await;
    stage.hosts[1].kill().await;
    stage.call().await;
    stage.hosts[0].revive().await;
    stage.hosts[2].kill().await;
    stage.call().await;
    assert_eq!(stage.client.members().in_use, stage.hosts[0].url);
}

#[tokio::test]
async fn a_silent_authority_delays_a_call_only_for_a_moment() {
    let stage = Stage::<2>::new().await;
    stage.hosts[0].set(Mode::Silent);
    stage.call().await;
    // It was given a little more time, and is known to be silent then.
    stage.wait_until_used(1).await;
    let before = stage.hosts[0].count("GET /v1/destinations");
    stage.call().await;
    assert_eq!(stage.hosts[0].count("GET /v1/destinations"), before);
}

#[tokio::test]
async fn two_silent_authorities_delay_a_call_only_for_a_moment() {
    let stage = Stage::<3>::new().await;
    stage.hosts[..2].iter().for_each(|host| host.set(Mode::Silent));
    stage.call().await;
    assert!(stage.hosts.iter().all(|host| host.count("GET /v1/destinations") > 0));
}

#[tokio::test]
async fn those_that_failed_are_asked_again_while_another_one_is_silent() {
    let stage = Stage::<3>::new().await;
    stage.hosts[0].set(Mode::Silent);
    stage.hosts[1..].iter().for_each(|host| host.set(Mode::Unable));
    let gets_a_majority = async {
        sleep(Duration::from_secs(1)).await;
        stage.hosts[2].set(Mode::Answers);
    };
    tokio::join!(stage.call(), gets_a_majority);

    let stage = Stage::<3>::new().await;
    stage.hosts[0].set(Mode::Silent);
    for host in &stage.hosts[1..] {
        host.kill().await;
    }
    let starts = async {
        sleep(Duration::from_secs(1)).await;
        stage.hosts[2].revive().await;
    };
    tokio::join!(stage.call(), starts);
}

#[tokio::test]
async fn a_call_to_silent_authorities_ends() {
    let stage = Stage::<3>::new().await;
    stage.hosts.iter().for_each(|host| host.set(Mode::Silent));
    assert!(matches!(timeout(LATE, stage.client.destinations()).await, Ok(Err(Error::Unreachable(_)))));
    let count = stage.hosts.iter().map(|host| host.count("GET /v1/destinations")).sum::<usize>();
    assert!(count < 20, "{count} requests");
}

#[tokio::test]
async fn every_authority_is_asked_for_the_answer_to_a_segment() {
    let stage = Stage::<3>::new().await;
    stage.hosts.iter().for_each(|host| host.set(Mode::IssuedNothing));
    let shown = api::AnswerRequest {
        vni: 100,
        sender: "10.0.0.5".parse().unwrap(),
        receiver: "10.0.0.7".parse().unwrap(),
        sending: "192.0.2.1".parse().unwrap(),
        receiving: "192.0.2.2".parse().unwrap(),
        option: String::new(),
        hops: Vec::new(),
    };
    let unknown = stage.client.answer_segment(&shown).await;
    assert!(matches!(unknown, Err(Error::Refused(problem)) if problem.is_unknown_segment()));
    // The authority that does not answer has possibly issued the segment.
    stage.hosts[0].kill().await;
    assert!(matches!(stage.client.answer_segment(&shown).await, Err(Error::Unreachable(_))));
    // It is asked although the pause after its failure is not over. The answer here is not a segment.
    stage.hosts[0].revive().await;
    stage.hosts[0].set(Mode::Answers);
    assert!(matches!(stage.client.answer_segment(&shown).await, Err(Error::Other(_))));
}

#[tokio::test]
async fn one_that_failed_is_asked_before_its_pause_is_over_if_the_one_that_answered_falls_silent() {
    let stage = Stage::<2>::new().await;
    for host in &stage.hosts {
        host.kill().await;
    }
    for _ in 0..3 {
        assert!(matches!(stage.client.destinations().await, Err(Error::Unreachable(_))));
    }
    for host in &stage.hosts {
        host.revive().await;
    }
    stage.call().await;
    let used = stage.hosts.iter().find(|host| host.url == stage.client.members().in_use).unwrap();
    used.set(Mode::Silent);
    stage.call().await;
}

#[tokio::test]
async fn without_any_authority_a_call_fails_soon_and_says_so() {
    let stage = Stage::<2>::new().await;
    stage.hosts[0].kill().await;
    stage.hosts[1].kill().await;
    for _ in 0..3 {
        let began = Instant::now();
        let Err(Error::Unreachable(why)) = stage.client.destinations().await else { panic!("nobody lives") };
        assert!(why.contains("cluster") && why.contains("answers") && began.elapsed() < SOON, "{why}");
    }
    stage.hosts[1].revive().await;
    stage.call().await;
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_again() {
    let stage = Stage::<2>::new().await;
    stage.hosts[0].set(Mode::BreaksOff);
    assert!(matches!(stage.client.login(&login()).await, Err(Error::Unreachable(_))));
    let logins = |host: usize| stage.hosts[host].count("POST /v1/login");
    assert_eq!((logins(0), logins(1)), (1, 0));
    stage.hosts[0].kill().await;
    let client = Authority::new(&stage.hosts[0].url, Some(stage.ca.pem.as_bytes())).unwrap();
    client.learn(&stage.client.members().all);
    assert_eq!(client.login(&login()).await.unwrap().person, "alice");
    assert_eq!((logins(0), logins(1)), (1, 1), "nothing was done where nobody listened");
}

#[tokio::test]
async fn a_login_does_not_wait_for_a_silent_authority() {
    let stage = Stage::<2>::new().await;
    // Its last answer is so old that the client makes sure first.
    sleep(Duration::from_millis(2500)).await;
    stage.hosts[0].set(Mode::Silent);
    let began = Instant::now();
    assert_eq!(stage.client.login(&login()).await.unwrap().person, "alice");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(stage.hosts[0].count("POST /v1/login"), 0);
}

/// Permits connections to the host that the user named and, if `anywhere` is set, to all others.
struct Limits {
    anywhere: bool,
}

impl Bounds for Limits {
    fn refusal(&self, host: &str, address: IpAddr, is_named: bool) -> Option<String> {
        (!self.anywhere && !is_named).then(|| format!("{host} at {address} is another organisation's"))
    }
}

#[tokio::test]
async fn an_authority_can_not_make_a_client_connect_to_addresses_of_others() {
    let ca = Ca::new();
    for anywhere in [true, false] {
        let own = Host::start(&ca).await;
        // A member that is named by its address, and one that is named by a name.
        let others = [TcpListener::bind("127.0.0.2:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
        let ports = others.each_ref().map(|other| other.local_addr().unwrap().port());
        let urls = [format!("https://127.0.0.2:{}", ports[0]), format!("https://localhost:{}", ports[1])];
        own.set_urls(&[&[own.url.clone()][..], &urls].concat());
        let uid = nix::unistd::getuid().as_raw();
        let client =
            Authority::of_user(&own.url, Some(ca.pem.as_bytes()), (uid, Arc::new(Limits { anywhere })), &[]).unwrap();
        let client = client.with_token("secret");
        client.destinations().await.unwrap();
        assert_eq!(client.members().all.len(), if anywhere { 3 } else { 2 }, "names are examined later");
        // An earlier process may have stored the members.
        client.learn(&[&[own.url.clone()][..], &urls].concat());
        own.kill().await;
        let call = timeout(SOON, client.destinations()).await;
        if anywhere {
            for other in others {
                let came = timeout(LATE, tokio::task::spawn_blocking(move || other.accept().is_ok())).await;
                assert!(came.unwrap().unwrap());
            }
            continue;
        }
        let Ok(Err(Error::Unreachable(why))) = call else { panic!("nobody answers") };
        assert!(why.contains("another organisation's") || why.contains("refused"), "{why}");
        // The client knocks at nobody's door, however often it looks for an authority that answers.
        for _ in 0..3 {
            let _ = timeout(SOON, client.destinations()).await;
            sleep(Duration::from_millis(300)).await;
        }
        for other in others {
            other.set_nonblocking(true).unwrap();
            assert!(other.accept().is_err(), "a connection arrived");
        }
        let refused = client.refused();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused.iter().any(|why| why.contains("127.0.0.2 at 127.0.0.2")), "{refused:?}");
        assert!(refused.iter().any(|why| why.contains("localhost at ")), "{refused:?}");
    }
}

#[tokio::test]
async fn no_token_goes_to_a_server_of_another_ca() {
    let stage = Stage::<2>::new().await;
    let impostor = Host::start(&Ca::new()).await;
    impostor.set_members(&[&impostor]);
    stage.hosts[0].set_members(&[&stage.hosts[0], &impostor]);
    stage.call().await;
    assert_eq!(stage.client.members().all, [stage.hosts[0].url.clone(), impostor.url.clone()]);
    let mut events = stage.client.events();
    assert_eq!(next(&mut events).await, Event::Hello);
    stage.hosts[0].push(&format!(r#"{{"event":"role_change","next":{:?}}}"#, impostor.url));
    stage.hosts[0].kill().await;
    for _ in 0..3 {
        let Err(Error::Unreachable(why)) = stage.client.destinations().await else { panic!("it is no authority") };
        assert!(!why.is_empty());
    }
    assert!(stage.client.login(&login()).await.is_err());
    assert!(impostor.tokens().is_empty() && impostor.count("POST /v1/login") == 0);
    stage.hosts[0].revive().await;
    // A pause for the one that announced its end.
    let began = Instant::now();
    while stage.client.destinations().await.is_err() {
        assert!(began.elapsed() < LATE);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(next(&mut events).await, Event::Hello);
}

#[tokio::test]
async fn a_session_has_ended_only_if_all_that_answer_say_so() {
    let stage = Stage::<3>::new().await;
    stage.hosts[0].set(Mode::KnowsNobody);
    stage.call().await;
    let mut events = stage.client.events();
    assert_eq!(next(&mut events).await, Event::Hello);
    stage.hosts[1].set(Mode::KnowsNobody);
    stage.hosts[2].kill().await;
    assert!(matches!(stage.client.destinations().await, Err(Error::NotLoggedIn)));
    // The stream has to be opened again, at the only one that lives.
    stage.hosts[1].kill().await;
    let end = timeout(LATE, events.next()).await.expect("an end");
    assert!(matches!(end, Err(Error::NotLoggedIn)), "{end:?}");
}

#[tokio::test]
async fn an_authority_without_a_majority_is_passed_over() {
    let stage = Stage::<2>::new().await;
    stage.hosts[0].set(Mode::Unable);
    stage.call().await;
    stage.wait_until_used(1).await;
    assert_eq!(stage.client.login(&login()).await.unwrap().person, "alice");
    stage.hosts[1].set(Mode::Unable);
    let answer = stage.client.destinations().await;
    assert!(matches!(answer, Err(Error::Refused(problem)) if problem.r#type == api::Problem::NO_MAJORITY));
}

#[tokio::test]
async fn a_login_waits_until_the_cluster_has_a_majority_again() {
    let stage = Stage::<2>::new().await;
    stage.call().await;
    stage.hosts.iter().for_each(|host| host.set(Mode::Unable));
    let login = login();
    let (answer, ()) = tokio::join!(stage.client.login(&login), async {
        sleep(Duration::from_millis(700)).await;
        stage.hosts.iter().for_each(|host| host.set(Mode::Answers));
    });
    assert_eq!(answer.unwrap().person, "alice");
}

#[tokio::test]
async fn the_stream_of_events_goes_on_at_another_authority_without_a_loss() {
    let stage = Stage::<3>::new().await;
    let mut events = stage.client.events();
    let trouble = events.trouble();
    assert_eq!(next(&mut events).await, Event::Hello);
    stage.hosts[0].push(&format!(r#"{{"event":"role_change","next":{:?}}}"#, stage.hosts[2].url));
    assert_eq!(next(&mut events).await, Event::Hello);
    assert_eq!(stage.client.members().in_use, stage.hosts[2].url);
    stage.hosts[2].push(r#"{"event":"policy"}"#);
    assert_eq!(next(&mut events).await, Event::Policy);
    stage.hosts[2].push(r#"{"event":"of_a_later_version"}"#);
    let began = Instant::now();
    stage.hosts[2].kill().await;
    assert_eq!(next(&mut events).await, Event::Hello);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(!trouble.has_changed().unwrap(), "{:?}", trouble.borrow());
}

#[tokio::test]
async fn the_named_authority_is_used_again_when_it_is_back() {
    let stage = Stage::<2>::new().await;
    let mut events = stage.client.events();
    assert_eq!(next(&mut events).await, Event::Hello);
    stage.hosts[0].kill().await;
    assert_eq!(next(&mut events).await, Event::Hello);
    assert_eq!(stage.client.members().in_use, stage.hosts[1].url);
    stage.hosts[0].revive().await;
    assert_eq!(next(&mut events).await, Event::Hello);
    stage.wait_until_used(0).await;
    assert!(stage.hosts[0].count("GET /v1/health") > 0);
}

#[tokio::test]
async fn calls_go_by_http_2_and_each_stream_of_events_has_a_connection_of_http_1() {
    let ca = Ca::new();
    for are_several in [false, true] {
        let porters = [Porter::start(&ca).await, Porter::start(&ca).await];
        let agreed = || porters.iter().flat_map(Porter::agreed).collect::<Vec<_>>();
        let client = Authority::new(&porters[0].url, Some(ca.pem.as_bytes())).unwrap().with_token("secret");
        if are_several {
            client.learn(&[porters[1].url.clone()]);
        }
        assert!(client.destinations().await.is_err(), "a porter gives no answers");
        let calls = agreed();
        assert!(!calls.is_empty() && calls.iter().all(|protocol| protocol == "h2"), "{calls:?}");
        let _events = client.events();
        let began = Instant::now();
        // The client of a cluster also measures its authorities, by calls.
        while !agreed().iter().any(|protocol| protocol == "http/1.1") {
            assert!(began.elapsed() < LATE, "the stream has another protocol");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_line_is_at_the_authority_in_use() {
    let stage = Stage::<2>::new().await;
    let asker = Asker::new(stage.client.clone());
    asker.ready().await;
    asker.ready().await;
    let lines = |host: usize| stage.hosts[host].count("POST /v1/segments/line");
    assert_eq!((lines(0), lines(1)), (1, 0));
    stage.hosts[0].kill().await;
    stage.call().await;
    stage.wait_until_used(1).await;
    asker.ready().await;
    assert_eq!((lines(0), lines(1)), (1, 1));
}

#[tokio::test]
async fn a_later_run_knows_the_authorities_of_the_last_one() {
    let stage = Stage::<2>::new().await;
    let kept = stage.client.members().all;
    stage.hosts[0].kill().await;
    let client = Authority::new(&stage.hosts[0].url, Some(stage.ca.pem.as_bytes())).unwrap().with_token("secret");
    assert!(client.destinations().await.is_err());
    client.learn(&kept);
    assert!(client.destinations().await.is_ok());
}
