use super::kept::KEPT_MAX;
use super::memory::PATHS_MAX;
use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

const HOUR: Duration = Duration::from_secs(3600);

/// The packets that are sent if only the tunnel works, and nobody knows that.
const ALL_TRIED: [(Rung, u64); 5] =
    [(Rung::Packet, 0), (Rung::Packet, 250), (Rung::FastOpen, 250), (Rung::FastOpen, 500), (Rung::Tunnel, 500)];

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn path(user: u32, network: u64) -> Path {
    let verifier = "192.0.2.20:4499".parse().expect("an address");
    Path { subject: Subject::of_user(user), network: Network(network), verifier, ipv6: false }
}

/// A path in virtual time that lets some rungs through.
struct Road {
    ladder: Ladder<u32>,
    now: Duration,
    open: Vec<Rung>,
    round_trip: Duration,
    answers: RefCell<BTreeMap<(u32, Side), Duration>>,
    sent: Vec<(u32, Rung, Duration)>,
    connections: u32,
}

impl Road {
    fn new(open: &[Rung]) -> Self {
        Self {
            ladder: Ladder::default(),
            now: ms(1_000_000),
            open: open.to_vec(),
            round_trip: ms(20),
            answers: RefCell::default(),
            sent: Vec::new(),
            connections: 0,
        }
    }

    fn send(&mut self, connection: u32, rung: Rung) {
        self.sent.push((connection, rung, self.now));
        if self.open.contains(&rung) {
            let at = self.now + self.round_trip;
            self.answers.borrow_mut().entry((connection, rung.side())).or_insert(at);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += ms(10);
            if self.ladder.timeout().is_none_or(|at| at > self.now) {
                continue;
            }
            let (now, answers) = (self.now, &self.answers);
            let heard = |connection: &u32, side: Side| {
                answers.borrow().get(&(*connection, side)).copied().filter(|at| *at <= now)
            };
            for (rung, connection) in self.ladder.tick(now, heard) {
                self.send(connection, rung);
            }
        }
    }

    /// Makes a connection, and returns the rungs by which its first packets went, with the time since the first.
    fn connect(&mut self, on: Path, again: bool) -> Vec<(Rung, u64)> {
        self.connections += 1;
        let (connection, began) = (self.connections, self.now);
        let FirstRung { rung, every } = self.ladder.first_rung(self.now, &on);
        let rung = if again && every > 0 { Rung::Packet } else { rung };
        self.send(connection, rung);
        self.ladder.watch(self.now, on, rung, connection);
        self.pass(ms(2000));
        let sent = self.sent.iter().filter(|(of, ..)| *of == connection);
        sent.map(|(_, rung, at)| (*rung, (*at - began).as_millis() as u64)).collect()
    }
}

#[test]
fn where_the_first_rung_works_nothing_is_added() {
    let mut road = Road::new(&Rung::ALL);
    for _ in 0..100 {
        assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    }
    assert_eq!(road.ladder.timeout(), None);
}

#[test]
fn the_next_rung_is_raced_and_remembered() {
    let mut road = Road::new(&[Rung::Tunnel]);
    let first = road.connect(path(1, 1), false);
    assert_eq!(first, ALL_TRIED);
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Tunnel, 0)]);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)), FirstRung { rung: Rung::Tunnel, every: TRY_AGAIN });
    let [(_, packet), (_, fast_open), _, (_, tunnel)] = road.ladder.states(road.now, &path(1, 1));
    for state in [packet, fast_open] {
        assert!(matches!(state, State::Blocked(left) if left > HOUR / 2), "{state:?}");
    }
    assert_eq!(tunnel, State::Works);
    // Another network, another person: nothing is known there.
    for other in [path(1, 2), path(2, 1), Path { ipv6: true, ..path(1, 1) }] {
        assert_eq!(road.ladder.first_rung(road.now, &other).rung, Rung::Packet);
        assert_eq!(road.ladder.states(road.now, &other).map(|(_, state)| state), [State::NotTried; 4]);
    }
}

/// The packets of an earlier connection get their time after a later one was answered. They say nothing about the present.
#[test]
fn a_rung_that_works_by_now_is_not_bad_because_of_earlier_packets() {
    for open in [Rung::Tunnel, Rung::FastOpen] {
        let (mut road, on) = (Road::new(&[open]), path(1, 1));
        let begin = |road: &mut Road, connection: u32| {
            road.send(connection, Rung::Packet);
            road.ladder.watch(road.now, on, Rung::Packet, connection);
        };
        begin(&mut road, 100);
        // The tunnel answers after 520 ms, and the latest packet by another rung was sent 20 ms before.
        road.pass(ms(530));
        road.open = Rung::ALL.to_vec();
        begin(&mut road, 101);
        road.pass(ms(2000));
        assert_eq!(road.ladder.first_rung(road.now, &on), FirstRung { rung: Rung::Packet, every: 0 }, "{open:?}");
        assert_eq!(road.ladder.states(road.now, &on)[0].1, State::Works, "{open:?}");
    }
}

#[test]
fn segments_travel_as_datagrams_only_if_that_is_allowed_and_before_the_tunnel_is_tried() {
    let open = [Rung::TcpInUdp, Rung::Tunnel];
    let begin = [(Rung::Packet, 0), (Rung::Packet, 250), (Rung::FastOpen, 250), (Rung::FastOpen, 500)];
    let mut road = Road::new(&open);
    assert_eq!(road.connect(path(1, 1), false), ALL_TRIED);
    let mut road = Road::new(&open);
    road.ladder.allow_tcp_in_udp(true);
    assert_eq!(road.connect(path(1, 1), false), [&begin[..], &[(Rung::TcpInUdp, 500)]].concat());
    for _ in 0..3 {
        assert_eq!(road.connect(path(1, 1), false), [(Rung::TcpInUdp, 0)]);
    }
    let [(_, packet), (_, fast_open), (_, datagrams), (_, tunnel)] = road.ladder.states(road.now, &path(1, 1));
    for state in [packet, fast_open] {
        assert!(matches!(state, State::Blocked(left) if left > HOUR / 2), "{state:?}");
    }
    assert_eq!([datagrams, tunnel], [State::Works, State::NotTried]);
    // A setting that is taken back is not used any more.
    road.ladder.allow_tcp_in_udp(false);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::Tunnel);
}

#[test]
fn a_path_without_a_tunnel_ends_with_datagrams() {
    let on = Path { verifier: "192.0.2.20:0".parse().expect("an address"), ..path(1, 1) };
    let mut road = Road::new(&[]);
    road.ladder.allow_tcp_in_udp(true);
    let all =
        [(Rung::Packet, 0), (Rung::Packet, 250), (Rung::FastOpen, 250), (Rung::FastOpen, 500), (Rung::TcpInUdp, 500)];
    assert_eq!(road.connect(on, false), all);
    assert!(road.ladder.rungs(&on).eq([Rung::Packet, Rung::FastOpen, Rung::TcpInUdp]));
    road.open = vec![Rung::TcpInUdp];
    assert_eq!(road.connect(on, false), all);
    assert_eq!(road.connect(on, false), [(Rung::TcpInUdp, 0)]);
}

#[test]
fn a_rung_that_only_another_one_of_its_side_could_have_answered_is_found_out() {
    let mut road = Road::new(&[Rung::FastOpen, Rung::Tunnel]);
    let raced = [(Rung::Packet, 0), (Rung::Packet, 250), (Rung::FastOpen, 250)];
    assert_eq!(road.connect(path(1, 1), false), raced);
    let [(_, packet), (_, fast_open), ..] = road.ladder.states(road.now, &path(1, 1));
    assert_eq!([packet, fast_open], [State::NotTried; 2], "it can't be told which of them was answered");
    assert_eq!(road.connect(path(1, 1), false), [(Rung::FastOpen, 0)]);
    assert_eq!(road.connect(path(1, 1), false), raced, "its second silent packet");
    for _ in 0..3 {
        assert_eq!(road.connect(path(1, 1), false), [(Rung::FastOpen, 0)]);
    }
    let [(_, packet), (_, fast_open), _, (_, tunnel)] = road.ladder.states(road.now, &path(1, 1));
    assert!(matches!(packet, State::Blocked(left) if left > HOUR / 2), "{packet:?}");
    assert_eq!([fast_open, tunnel], [State::Works, State::NotTried]);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)), FirstRung { rung: Rung::FastOpen, every: TRY_AGAIN });
    // The box goes.
    road.open = Rung::ALL.to_vec();
    assert_eq!(road.connect(path(1, 1), true), [(Rung::Packet, 0)]);
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
}

#[test]
fn a_lost_packet_where_the_option_is_dropped_costs_one_more_wait() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connections = 1;
    road.send(1, Rung::Packet);
    road.ladder.watch(road.now, path(1, 1), Rung::Packet, 1);
    road.open = vec![Rung::Packet, Rung::Tunnel];
    road.pass(ms(2000));
    assert_eq!(road.connect(path(1, 1), false)[0], (Rung::FastOpen, 0), "it may have been this one");
    for _ in 0..5 {
        assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    }
}

#[test]
fn an_answer_may_be_faster_than_the_news_of_its_packet() {
    let mut road = Road::new(&[Rung::Packet]);
    road.answers.borrow_mut().insert((1, Side::Outside), road.now);
    road.now += ms(1);
    road.ladder.watch(road.now, path(1, 1), Rung::Packet, 1);
    road.pass(ms(1000));
    let [(_, packet), ..] = road.ladder.states(road.now, &path(1, 1));
    assert_eq!(packet, State::Works);
}

#[test]
fn a_slow_path_is_given_two_round_trips() {
    let mut road = Road::new(&Rung::ALL);
    road.round_trip = ms(240);
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    road.round_trip = ms(400);
    // 240 ms were seen: the second rung is due after 480.
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    let mut slow = Road::new(&Rung::ALL);
    slow.round_trip = ms(400);
    assert_eq!(slow.connect(path(1, 1), false).len(), 3, "the round trip is not known yet");
    // The answer may be for either rung: the next connection tells.
    assert_eq!(slow.connect(path(1, 1), false), [(Rung::FastOpen, 0)]);
    for _ in 0..3 {
        assert_eq!(slow.connect(path(1, 1), false), [(Rung::Packet, 0)], "it works, and its time is known");
    }
}

#[test]
fn a_host_that_is_down_makes_no_rung_bad() {
    let mut road = Road::new(&[]);
    for _ in 0..5 {
        assert_eq!(road.connect(path(1, 1), false).len(), 5);
        road.pass(ms(10_000));
    }
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::Packet);
    assert_eq!(road.ladder.timeout(), None);
}

#[test]
fn the_time_doubles_from_one_hour_to_sixty_four() {
    let mut road = Road::new(&[Rung::Tunnel]);
    for hours in [1, 2, 4, 8, 16, 32, 64, 64] {
        assert_eq!(road.connect(path(1, 1), false).len(), 5, "{hours}");
        let bad =
            |road: &Road, after: Duration| road.ladder.first_rung(road.now + after, &path(1, 1)).rung == Rung::Tunnel;
        assert!(bad(&road, HOUR * hours - ms(2000)) && !bad(&road, HOUR * hours), "{hours}");
        // One connection in fifty tries again meanwhile; that extends nothing.
        let again = road.connect(path(1, 1), true);
        assert_eq!(again, [(Rung::Packet, 0), (Rung::Packet, 250), (Rung::Tunnel, 250)], "the bad one is left out");
        assert!(!bad(&road, HOUR * hours), "{hours}");
        road.now += HOUR * hours;
    }
}

#[test]
fn a_rung_that_works_again_is_used_again() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connect(path(1, 1), false);
    road.open = Rung::ALL.to_vec();
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Tunnel, 0)]);
    assert_eq!(road.connect(path(1, 1), true), [(Rung::Packet, 0)]);
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).every, 0);
}

#[test]
fn a_worse_rung_that_fails_gives_way_to_a_better_one() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connect(path(1, 1), false);
    road.open = vec![Rung::Packet];
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Tunnel, 0), (Rung::Tunnel, 250), (Rung::Packet, 250)]);
    assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
}

#[test]
fn another_network_clears_what_is_bad() {
    let mut road = Road::new(&[Rung::Tunnel]);
    assert!(road.ladder.moved(Network(1)) && !road.ladder.moved(Network(1)));
    road.connect(path(1, 1), false);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::Tunnel);
    assert!(road.ladder.moved(Network(2)));
    assert!(road.ladder.moved(Network(1)));
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::Packet);
}

#[test]
fn one_lost_packet_makes_no_rung_bad() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connections = 1;
    road.send(1, Rung::Packet);
    road.ladder.watch(road.now, path(1, 1), Rung::Packet, 1);
    road.open = Rung::ALL.to_vec();
    road.pass(ms(2000));
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::FastOpen, "it may have been answered");
    assert_eq!(road.connect(path(1, 1), false), [(Rung::FastOpen, 0)]);
    for _ in 0..3 {
        assert_eq!(road.connect(path(1, 1), false), [(Rung::Packet, 0)]);
    }
}

#[test]
fn nobody_fills_anothers_memory() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connect(path(1, 1), false);
    for number in 0..PATHS_MAX as u16 * 3 {
        let verifier = SocketAddr::new("192.0.2.20".parse().expect("an address"), number);
        let theirs = Path { verifier, ..path(2, 1) };
        road.ladder.memory.failed(road.now, &theirs, Rung::Packet, road.now);
        road.now += ms(1);
    }
    assert_eq!(road.ladder.memory.len(), PATHS_MAX + 1);
    assert_eq!(road.ladder.first_rung(road.now, &path(1, 1)).rung, Rung::Tunnel);
    for connection in 0..1000 {
        road.ladder.watch(road.now, path(2, 1), Rung::Packet, connection);
    }
    assert_eq!(road.ladder.watches.len(), WATCHED_MAX);
    road.ladder.watch(road.now, path(1, 1), Rung::Packet, 1000);
    assert_eq!(road.ladder.repeated(Rung::Packet, |connection| *connection == 1000), Some(vec![]));
    road.ladder.forget(Subject::of_user(2));
    assert_eq!((road.ladder.memory.len(), road.ladder.watches.len()), (1, 1));
}

/// Returns a ladder of another process, which begins its clock anew, with what `road` has kept.
fn restarted(road: &mut Road, open: &[Rung], off: Duration) -> Road {
    let unix = Duration::from_secs(1_800_000_000);
    assert!(road.ladder.has_news());
    let kept = road.ladder.keep(road.now, unix);
    let text = serde_json::to_string(&kept).expect("text");
    let mut next = Road::new(open);
    next.now = ms(5000);
    let kept: Vec<KeptPath> = serde_json::from_str(&text).expect("paths");
    next.ladder.take_over((next.now, unix + off), road.ladder.network(), &kept, |_| true);
    next
}

#[test]
fn what_was_learned_outlives_the_process() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.ladder.moved(Network(1));
    for hours in [1, 2] {
        road.connect(path(1, 1), false);
        road.now += HOUR * hours;
    }
    road.connect(path(1, 1), false);
    road.connect(Path { ipv6: true, ..path(1, 1) }, false);
    assert_eq!(road.ladder.keep(road.now, HOUR).len(), 2);
    road.connect(path(1, 1), false);
    assert!(!road.ladder.has_news(), "nothing new was learned");
    road.connect(path(2, 1), false);
    let mut next = restarted(&mut road, &[Rung::Tunnel], HOUR);
    assert!(!next.ladder.moved(Network(1)), "the same network");
    assert_eq!(next.connect(path(1, 1), false), [(Rung::Tunnel, 0)]);
    let [(_, State::Blocked(left)), ..] = next.ladder.states(next.now, &path(1, 1)) else { panic!("not blocked") };
    assert!(left > HOUR * 2 && left <= HOUR * 3, "an hour of four has passed: {left:?}");
    next.now += HOUR * 3;
    assert_eq!(next.connect(path(1, 1), false).len(), 5, "its time was over");
    let [(_, State::Blocked(left)), ..] = next.ladder.states(next.now, &path(1, 1)) else { panic!("not blocked") };
    assert!(left > HOUR * 7, "the time doubles on: {left:?}");
    // A later process, in another network.
    let mut moved = restarted(&mut next, &[Rung::Tunnel], Duration::ZERO);
    assert!(moved.ladder.moved(Network(2)));
    assert_eq!(moved.ladder.first_rung(moved.now, &path(1, 1)).rung, Rung::Packet);
}

#[test]
fn a_clock_that_jumped_extends_no_time_beyond_the_longest() {
    let mut road = Road::new(&[Rung::Tunnel]);
    road.connect(path(1, 0), false);
    for years in [1, 50] {
        let unix = Duration::from_secs(1_800_000_000);
        let kept = road.ladder.keep(road.now, unix);
        let mut next = Road::new(&[Rung::Tunnel]);
        next.ladder.take_over((next.now, unix - HOUR * 8766 * years), Network(0), &kept, |_| true);
        let far = next.now + HOUR * 64;
        assert_eq!(next.ladder.first_rung(far, &path(1, 0)).rung, Rung::Packet);
    }
}

#[test]
fn damaged_memory_stays_in_its_bounds() {
    let rung = KeptRung { works: false, failures: u32::MAX, times: u32::MAX, until: u64::MAX };
    let verifier = |number: u16| SocketAddr::new("192.0.2.20".parse().expect("an address"), number);
    let kept: Vec<_> = (0..KEPT_MAX as u16 * 2)
        .flat_map(|number| [1, 2].map(|user| (number, user)))
        .map(|(number, user)| KeptPath {
            user,
            network: 0,
            verifier: verifier(number),
            ipv6: false,
            used: if number == 7 { u64::MAX } else { u64::from(number) },
            round_trip: Some(u32::MAX),
            rungs: [("packet".to_owned(), rung), ("pigeon".to_owned(), rung)].into(),
        })
        .collect();
    let mut road = Road::new(&[Rung::Tunnel]);
    road.ladder.take_over((road.now, HOUR), Network(0), &kept, |user| user == 1);
    assert_eq!(road.ladder.memory.len(), KEPT_MAX, "of one user; the other one is gone");
    let on = Path { verifier: verifier(7), ..path(1, 0) };
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::FastOpen);
    road.now += HOUR * 64;
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::Packet);
    road.connect(on, false);
    road.pass(ms(10_000));
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::Tunnel);
    road.now += HOUR * 64;
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::Packet, "it doubles no further");
}

#[test]
fn a_bad_rung_that_may_have_been_answered_is_tried_alone() {
    let mut road = Road::new(&[Rung::FastOpen]);
    let on = path(1, 0);
    for _ in 0..3 {
        road.connect(on, false);
    }
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::FastOpen);
    // From now on, the box drops SYNs with the option, and passes those without it.
    road.open = [Rung::Packet].into_iter().collect();
    assert!(road.connect(on, false).len() > 1);
    assert_eq!(road.ladder.first_rung(road.now, &on).rung, Rung::Packet);
    assert_eq!(road.connect(on, false), [(Rung::Packet, 0)]);
    assert_eq!(road.ladder.first_rung(road.now, &on), FirstRung { rung: Rung::Packet, every: 0 });
}

/// An event in a random life.
#[derive(Clone, Copy, Debug)]
enum Event {
    Connect { user: u32, again: bool },
    Open { packet: bool, fast_open: bool, tunnel: bool },
    Pass { seconds: u64 },
    Move { network: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..3_u32, any::<bool>()).prop_map(|(user, again)| Event::Connect { user, again }),
        2 => any::<(bool, bool, bool)>()
            .prop_map(|(packet, fast_open, tunnel)| Event::Open { packet, fast_open, tunnel }),
        1 => (0..400_000_u64).prop_map(|seconds| Event::Pass { seconds }),
        1 => (1..3_u64).prop_map(|network| Event::Move { network }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_rung_is_bad_only_after_two_silent_packets_and_another_rungs_answer(events in prop::collection::vec(event(), 1..30)) {
        let mut road = Road::new(&Rung::ALL);
        // By user: silent packets of the best rung in a row, in connections that another rung's answer opened.
        let mut silent = BTreeMap::<u32, u32>::new();
        let mut network = 0;
        for event in events {
            match event {
                Event::Connect { user, again } => {
                    let on = path(user, network);
                    let before = road.ladder.first_rung(road.now, &on);
                    let sent = road.connect(on, again);
                    prop_assert!(sent.len() <= 5 && sent[0].1 == 0, "{sent:?}");
                    let is_open = |rung| road.open.contains(&rung);
                    prop_assert!(sent.len() == 1 || !is_open(sent[0].0), "raced without need: {sent:?}");
                    let packets = sent.iter().filter(|(rung, _)| *rung == Rung::Packet).count() as u32;
                    if packets > 0 && is_open(Rung::Packet) {
                        // If both rungs of this side were tried, the answer proves neither.
                        if !sent.iter().any(|(rung, _)| *rung == Rung::FastOpen) {
                            silent.insert(user, 0);
                        }
                    } else if is_open(Rung::Tunnel) || is_open(Rung::FastOpen) {
                        *silent.entry(user).or_default() += packets;
                    }
                    if road.ladder.memory.is_bad(road.now, &on, Rung::Packet) {
                        prop_assert!(silent.get(&user).is_some_and(|count| *count >= 2), "bad without cause");
                    }
                    prop_assert!(before.every == 0 || before.rung != Rung::Packet);
                }
                Event::Open { packet, fast_open, tunnel } => {
                    let all = [(packet, Rung::Packet), (fast_open, Rung::FastOpen), (tunnel, Rung::Tunnel)];
                    road.open = all.into_iter().filter(|(open, _)| *open).map(|(_, rung)| rung).collect();
                }
                Event::Pass { seconds } => {
                    // The ladder first gives up connections that wait for an answer.
                    road.pass(ms(10_000));
                    road.now += Duration::from_secs(seconds);
                }
                Event::Move { network: to } => {
                    if road.ladder.moved(Network(to)) {
                        silent.clear();
                        for user in 1..3 {
                            let first = road.ladder.first_rung(road.now, &path(user, to));
                            prop_assert_eq!(first, FirstRung { rung: Rung::Packet, every: 0 });
                        }
                    }
                    network = to;
                }
            }
            for user in 1..3 {
                let far = road.now + HOUR * 64;
                let is_bad = |rung| road.ladder.memory.is_bad(far, &path(user, network), rung);
                prop_assert!(!Rung::ALL.into_iter().any(is_bad), "bad without end");
            }
        }
    }
}
