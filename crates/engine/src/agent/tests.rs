//! Tests of the state machine in virtual time.

mod cost;
mod hints;
mod limits;
mod organisations;
mod renewal;
mod sealed;

use super::frame::tests::partial;
use super::*;
use crate::model::{Sealing, Secret, Service};
use wire::packet::{Packet, TCP, UDP};
use wire::{Carrier, ClientKey, Flags, GrantHeader, GrantKey, Handle, Pair, Suite};

/// The authority's time when the machine has been up for [`START`].
const UNIX: u64 = 1_800_000_000;
const START: Duration = Duration::from_secs(100);
const ALICE: Subject = Subject::of_user(1000);
const BOB: Subject = Subject::of_user(1001);

/// An agent, a clock, and what the agent has sent to the kernel and the authority.
struct Stage {
    agent: Agent,
    now: Duration,
    entries: BTreeMap<(u32, Destination), GrantEntry>,
    owners: Vec<Owner>,
    requests: Vec<(FetchId, Subject, GrantRequest)>,
    reloads: Vec<Subject>,
    /// Source ports of the frames sent, and whether the kernel had a grant for each at that moment.
    sent: Vec<(u16, bool)>,
    ended: Vec<Subject>,
    protected: Vec<String>,
    clocks: Vec<u64>,
    used: Used,
}

impl Stage {
    fn new(config: Config) -> Self {
        let agent = Agent::new(config, Clock::at(Duration::from_secs(UNIX), START));
        let (entries, owners, requests, reloads) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let (sent, ended, protected) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            agent,
            now: START,
            entries,
            owners,
            requests,
            reloads,
            sent,
            ended,
            protected,
            clocks: Vec::new(),
            used: Used::default(),
        }
    }

    /// Creates a stage where Alice is logged in and may reach 192.0.2.0/24.
    fn alice() -> Self {
        let mut stage = Self::new(Config::default());
        stage.login(ALICE);
        stage
    }

    fn login(&mut self, subject: Subject) {
        let receivers = vec![receiver("192.0.2.0/24")];
        let login = Login { expires: UNIX + 43_200, receivers, ..Login::default() };
        self.agent.login(subject, login);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(output) = self.agent.poll() {
            match output {
                Output::SetOwner(owner, _) => self.owners.push(owner),
                Output::RemoveOwner(owner) => self.owners.retain(|other| *other != owner),
                Output::Write(slot, entry) => drop(self.entries.insert((slot.subject, slot.destination()), entry)),
                Output::Remove(slot) => drop(self.entries.remove(&(slot.subject, slot.destination()))),
                Output::Protect(entries) => {
                    self.protected = entries.iter().map(|entry| entry.prefix.to_string()).collect();
                }
                Output::SetClock(offset) => self.clocks.push(offset),
                Output::Fetch(id, subject, request) => self.requests.push((id, subject, request)),
                Output::FetchDestinations(subject) => self.reloads.push(subject),
                Output::Send(subject, frame) => {
                    let ready = frame.ready();
                    let packet = Packet::parse(&ready[0].bytes);
                    let to = Destination {
                        address: packet.destination.expect("a destination"),
                        protocol: packet.protocol,
                        port: packet.destination_port,
                    };
                    let entry = self.entries.get(&(subject.number(), to)).expect("a frame finds its entry");
                    self.sent.push((packet.source_port, entry.plain == 0));
                }
                Output::Ended(subject) => self.ended.push(subject),
            }
        }
    }

    fn queued(&mut self, to: Destination, source_port: u16) {
        self.held_for(ALICE, to, source_port);
    }

    fn held_for(&mut self, subject: Subject, to: Destination, source_port: u16) {
        let source = if to.address.is_ipv4() { "198.51.100.1" } else { "2001:db8::1" };
        let bytes = partial(source, source_port, &to.address.to_string(), to.protocol, to.port, b"");
        let frame = Frame::new(2, 14, 0, &bytes);
        self.agent.queued(self.now, &subject.slot(&to), frame);
        self.settle();
    }

    fn answer(&mut self, answer: Result<Grant, Refusal>) {
        let (id, subject, _) = self.requests.remove(0);
        self.agent.answered(self.now, subject, id, &answer).expect("a usable answer");
        self.settle();
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.now += Duration::from_millis(250);
            let used = self.used;
            self.agent.tick(self.now, |_| Some(used));
            self.settle();
        }
    }

    fn unix(&self) -> u64 {
        self.agent.unix(self.now, ALICE)
    }

    /// Builds a grant for exactly this place, for five minutes.
    fn grant(&self, to: Destination, handle: u64) -> Result<Grant, Refusal> {
        self.grant_of(to, handle, 32, Flags::PORT)
    }

    fn grant_of(&self, to: Destination, handle: u64, prefix_length: u8, flags: Flags) -> Result<Grant, Refusal> {
        let expires = self.unix() as u32 + 300;
        let header =
            GrantHeader { suite: Suite::Siphash, flags, epoch: 0, prefix_length, expires, handle: Handle(handle) };
        Ok(Grant {
            secret: Secret::Grant(header, GrantKey::new([7; 16])),
            prefix: ipnet::IpNet::new(to.address, prefix_length).expect("a prefix").trunc(),
            receiver: "lab".into(),
            rule: "policy.toml:1 lab".into(),
            carrier: Carrier::Tail,
            sealing: Sealing::NONE,
            tunnels: Vec::new(),
            expires,
        })
    }

    /// Builds a pair for the whole network around this place, for five minutes.
    fn pair(&self, to: Destination, number: u8) -> Result<Grant, Refusal> {
        let grant = self.grant_of(to, 0, 24, Flags::default())?;
        let secret = Secret::Pair(Pair::from_bytes([number; 7]), ClientKey::new([7; 28]));
        Ok(Grant { secret, carrier: Carrier::Shim, ..grant })
    }

    fn has_pair(&self, to: Destination, number: u8) -> bool {
        let entry = self.entry(to).filter(|entry| entry.suite == wire::ls::SUITE);
        entry.is_some_and(|entry| entry.header[..8] == [number, number, number, number, number, number, number, 0])
    }

    fn entry(&self, to: Destination) -> Option<&GrantEntry> {
        self.entries.get(&(ALICE.number(), to))
    }

    fn has_plain(&self, to: Destination) -> bool {
        self.entry(to).is_some_and(|entry| entry.plain == 1)
    }

    fn has_grant(&self, to: Destination, handle: u64) -> bool {
        self.entry(to).is_some_and(|entry| entry.plain == 0 && entry.header[8..] == handle.to_be_bytes())
    }
}

fn receiver(prefix: &str) -> Receiver {
    Receiver { name: "lab".into(), prefix: prefix.parse().expect("a prefix"), services: vec![Service::ALL] }
}

fn tcp(host: u8, port: u16) -> Destination {
    Destination { address: [192, 0, 2, host].into(), protocol: TCP, port }
}

fn udp(host: u8, port: u16) -> Destination {
    Destination { protocol: UDP, ..tcp(host, port) }
}

fn denied() -> Result<Grant, Refusal> {
    Err(Refusal::Denied("no".into()))
}

fn away() -> Result<Grant, Refusal> {
    Err(Refusal::Failed("no route".into()))
}

#[test]
fn a_held_packet_goes_out_when_its_grant_comes() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 40000);
    assert_eq!(stage.requests.len(), 1);
    assert!(stage.sent.is_empty());
    stage.answer(stage.grant(tcp(1, 22), 5));
    assert_eq!(stage.sent, [(40000, true)]);
    assert!(stage.has_grant(tcp(1, 22), 5));
    assert_eq!(u64::from(stage.entry(tcp(1, 22)).expect("an entry").until), UNIX + 297);
}

#[test]
fn packets_wait_for_one_question_and_leave_in_order() {
    let mut stage = Stage::alice();
    for port in [1, 2, 3] {
        stage.queued(udp(1, 443), port);
    }
    assert_eq!(stage.requests.len(), 1);
    stage.answer(stage.grant(udp(1, 443), 5));
    assert_eq!(stage.sent, [(1, true), (2, true), (3, true)]);
}

#[test]
fn a_wide_grant_covers_without_asking() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.queued(tcp(2, 80), 2);
    assert_eq!(stage.requests.len(), 2);
    stage.answer(stage.grant_of(tcp(1, 22), 5, 24, Flags::default()));
    assert_eq!(stage.sent, [(1, true), (2, true)]);
    stage.queued(tcp(3, 443), 3);
    assert_eq!((stage.requests.len(), stage.sent.len()), (1, 3));
    assert!(stage.has_grant(tcp(3, 443), 5));
}

#[test]
fn the_width_of_the_last_grant_says_what_one_question_will_cover() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant_of(tcp(1, 22), 5, 24, Flags::default()));
    stage.agent.event(stage.now, ALICE, &Event::Revoked(vec![Handle(5)]));
    stage.settle();
    assert!(stage.entry(tcp(1, 22)).is_none());
    for host in 1..9 {
        stage.queued(tcp(host, 22), 1);
    }
    assert_eq!(stage.requests.len(), 1);
    // The new grant is narrower than the old one: the agent requests the rest.
    stage.answer(stage.grant(tcp(1, 22), 6));
    assert_eq!((stage.sent.len(), stage.requests.len()), (2, 7));
}

#[test]
fn a_denial_sends_packets_without_identity_for_a_while() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(denied());
    assert_eq!(stage.sent, [(1, false)]);
    stage.queued(tcp(1, 22), 2);
    assert!(stage.requests.is_empty());
    stage.pass(11);
    stage.queued(tcp(1, 22), 3);
    assert_eq!((stage.requests.len(), stage.sent.len()), (1, 2));
}

#[test]
fn a_change_of_policy_lifts_denials_and_what_is_no_longer_reachable() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(denied());
    stage.queued(tcp(2, 22), 2);
    stage.answer(stage.grant(tcp(2, 22), 5));
    stage.reloads.clear();
    stage.agent.event(stage.now, ALICE, &Event::Policy);
    stage.settle();
    assert_eq!(stage.reloads, [ALICE]);
    stage
        .agent
        .destinations(stage.now, ALICE, Some((vec![receiver("192.0.2.1/32")], BTreeSet::new())))
        .expect("few spans");
    stage.settle();
    assert!(stage.entries.is_empty());
    assert_eq!(stage.protected, ["192.0.2.1/32"]);
}

#[test]
fn an_authority_that_is_away_is_asked_again_while_somebody_waits() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    let mut questions = 0;
    while !stage.requests.is_empty() && questions < 100 {
        stage.answer(away());
        questions += 1;
        stage.pass(5);
    }
    // No frame waits longer than half a minute; pauses grow to four seconds.
    assert!((6..12).contains(&questions), "{questions}");
    assert!(stage.sent.is_empty() && stage.agent.timeout().is_none());
}

#[test]
fn the_authoritys_return_is_used_at_once() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    for _ in 0..4 {
        stage.answer(away());
        stage.pass(3);
    }
    stage.answer(away());
    assert!(stage.requests.is_empty());
    stage.agent.event(stage.now, ALICE, &Event::Hello);
    stage.now = stage.agent.timeout().expect("something to do");
    stage.agent.tick(stage.now, |_| None);
    stage.settle();
    stage.answer(stage.grant(tcp(1, 22), 5));
    assert_eq!(stage.sent, [(1, true)]);
}

#[test]
fn logout_leaves_nothing() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    stage.queued(tcp(2, 22), 2);
    stage.agent.logout(ALICE);
    stage.settle();
    assert!(stage.entries.is_empty() && stage.owners.is_empty() && stage.protected.is_empty());
    // The answer to the request arrives too late.
    stage.answer(stage.grant(tcp(2, 22), 6));
    assert!(stage.entries.is_empty() && stage.sent.len() == 1 && stage.ended.is_empty());
}

#[test]
fn a_session_that_the_authority_ends_is_over() {
    for end in 0..3 {
        let mut stage = Stage::alice();
        stage.queued(tcp(1, 22), 1);
        match end {
            0 => stage.answer(Err(Refusal::NotLoggedIn)),
            1 => stage.agent.event(stage.now, ALICE, &Event::LoggedOut),
            _ => {
                stage.now += Duration::from_secs(43_200);
                stage.agent.tick(stage.now, |_| None);
            }
        }
        stage.settle();
        assert_eq!((&stage.ended[..], stage.owners.len()), (&[ALICE][..], 0), "{end}");
    }
}

#[test]
fn an_answer_to_an_earlier_login_does_not_end_this_one() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.login(ALICE);
    stage.answer(Err(Refusal::NotLoggedIn));
    assert!(stage.ended.is_empty() && stage.owners.len() == 1);
}

#[test]
fn what_a_person_denies_is_not_asked_for() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    let mut rules = ConsentRules::default();
    rules.set("192.0.2.1:22".parse().expect("a target"), Consent::Deny);
    stage.agent.set_rules(ALICE, rules);
    stage.settle();
    assert!(stage.entry(tcp(1, 22)).is_none());
    stage.queued(tcp(1, 22), 2);
    assert!(stage.has_plain(tcp(1, 22)) && stage.requests.is_empty());
    assert_eq!(stage.sent, [(1, true), (2, false)]);
    stage.agent.set_rules(ALICE, ConsentRules::default());
    stage.settle();
    stage.queued(tcp(1, 22), 3);
    assert!(stage.has_grant(tcp(1, 22), 5) && stage.requests.is_empty());
}

#[test]
fn the_authority_hears_of_a_rule_that_allows_and_is_asked_again_once_there_is_one() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    assert!(!stage.requests[0].2.consented, "nobody has said anything");
    stage.answer(denied());
    let mut rules = ConsentRules::default();
    rules.set("192.0.2.0/24".parse().expect("a target"), Consent::Allow);
    stage.agent.set_rules(ALICE, rules);
    stage.settle();
    stage.queued(tcp(1, 22), 2);
    assert!(stage.requests[0].2.consented);
}

#[test]
fn where_the_default_is_deny_only_allowed_destinations_get_tokens() {
    let mut stage = Stage::new(Config { default: Consent::Deny, ..Config::default() });
    stage.login(ALICE);
    let mut rules = ConsentRules::default();
    rules.set("192.0.2.2".parse().expect("a target"), Consent::Allow);
    stage.agent.set_rules(ALICE, rules);
    stage.queued(tcp(1, 22), 1);
    stage.queued(tcp(2, 22), 2);
    assert_eq!(stage.sent, [(1, false)]);
    assert_eq!(stage.requests.len(), 1);
}

#[test]
fn another_persons_receivers_get_no_token() {
    let mut stage = Stage::alice();
    let receivers = vec![receiver("203.0.113.0/24")];
    let login = Login { expires: UNIX + 1000, receivers, ..Login::default() };
    stage.agent.login(BOB, login);
    stage.settle();
    assert_eq!(stage.protected, ["192.0.2.0/24", "203.0.113.0/24"]);
    stage.held_for(BOB, tcp(1, 22), 1);
    assert!(stage.requests.is_empty());
    assert_eq!(stage.sent, [(1, false)]);
}

#[test]
fn a_grant_for_a_single_flow_serves_one_and_its_repetitions() {
    let mut stage = Stage::alice();
    let single = Flags::PORT.with(Flags::SINGLE);
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant_of(tcp(1, 22), 5, 32, single));
    assert_eq!((stage.sent.len(), stage.entry(tcp(1, 22)).is_none()), (1, true));
    stage.queued(tcp(1, 22), 1);
    assert_eq!((stage.sent.len(), stage.requests.len()), (2, 0));
    stage.queued(tcp(1, 22), 2);
    assert_eq!((stage.sent.len(), stage.requests.len()), (2, 1));
    stage.answer(stage.grant_of(tcp(1, 22), 6, 32, single));
    assert_eq!(stage.sent, [(1, true), (1, true), (2, true)]);
}

#[test]
fn a_new_network_ends_grants_bound_to_the_old_address() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant_of(tcp(1, 22), 5, 32, Flags::PORT.with(Flags::SOURCE)));
    stage.queued(tcp(2, 22), 1);
    stage.answer(stage.grant(tcp(2, 22), 6));
    stage.agent.moved();
    stage.settle();
    assert!(stage.entry(tcp(1, 22)).is_none() && stage.has_grant(tcp(2, 22), 6));
}

#[test]
fn a_restart_goes_on_with_what_the_kernel_has() {
    let mut before = Stage::alice();
    before.queued(tcp(1, 22), 1);
    before.answer(before.grant_of(tcp(1, 22), 5, 24, Flags::default()));
    before.queued(tcp(9, 22), 1);
    before.held_for(BOB, tcp(1, 22), 1);
    let mut entries: Vec<_> = before.entries.iter().map(|((_, to), entry)| (ALICE.slot(to), *entry)).collect();
    entries.push((BOB.slot(&tcp(1, 22)), entries[0].1));

    let mut after = Stage::alice();
    after.entries = entries.iter().map(|(slot, entry)| ((slot.subject, slot.destination()), *entry)).collect();
    let stale = Owner { kind: owner::USER, reserved: 0, id: 1001 };
    after.owners.push(stale);
    let owners = after.owners.clone();
    after.agent.take_over(after.now, &owners, &entries);
    after.settle();
    assert!(after.has_grant(tcp(1, 22), 5) && after.has_grant(tcp(9, 22), 5));
    assert_eq!((after.entries.len(), after.owners.len()), (2, 1));
    after.queued(tcp(3, 80), 1);
    assert!(after.requests.is_empty());
    assert_eq!(after.sent, [(1, true)]);
}

#[test]
fn a_packet_that_came_through_cut_short_still_gets_its_grant_asked_for() {
    let mut stage = Stage::alice();
    stage.agent.queued(stage.now, &ALICE.slot(&udp(1, 443)), None);
    stage.settle();
    assert_eq!(stage.requests.len(), 1);
    stage.answer(stage.grant(udp(1, 443), 5));
    stage.queued(udp(1, 443), 1);
    assert_eq!((stage.requests.len(), &stage.sent[..]), (0, &[(1, true)][..]));
}

#[test]
fn a_grant_that_makes_no_sense_is_a_failure() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    let good = stage.grant(tcp(1, 22), 5).unwrap_or_else(|_| panic!("a grant"));
    for broken in [
        Grant { prefix: "192.0.2.9/32".parse().expect("a prefix"), ..good.clone() },
        stage.grant_of(tcp(1, 22), 5, 32, Flags::BEARER).unwrap_or_else(|_| panic!("a grant")),
    ] {
        let (id, ..) = stage.requests.remove(0);
        let outcome = stage.agent.answered(stage.now, ALICE, id, &Ok(broken));
        assert!(matches!(outcome, Err(Unusable::Malformed(_))), "{outcome:?}");
        stage.settle();
        stage.pass(4);
        assert_eq!((stage.requests.len(), stage.sent.len()), (1, 0));
    }
}

#[test]
fn nothing_is_sent_with_a_grant_that_admits_in_a_tunnel_only() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    let mut sealed =
        stage.grant_of(tcp(1, 22), 5, 32, Flags::PORT.with(Flags::SEALED)).unwrap_or_else(|_| panic!("a grant"));
    sealed.sealing = Sealing { treatment: crate::model::Treatment::Encrypt, ..Sealing::NONE };
    let (id, ..) = stage.requests.remove(0);
    assert_eq!(stage.agent.answered(stage.now, ALICE, id, &Ok(sealed)), Err(Unusable::Sealed));
    stage.settle();
    stage.pass(4);
    assert_eq!((stage.requests.len(), stage.sent.len()), (1, 0), "it asks again, and sends nothing meanwhile");
}

#[test]
fn a_grant_that_ends_at_once_is_over_and_asked_for_again() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    let ends_in = |seconds: u32, stage: &Stage| {
        let good = stage.grant(tcp(1, 22), 5).unwrap_or_else(|_| panic!("a grant"));
        let Secret::Grant(header, key) = good.secret else { panic!("a pair") };
        let header = GrantHeader { expires: stage.unix() as u32 + seconds, ..header };
        Ok(Grant { secret: Secret::Grant(header, key), ..good })
    };
    let (id, ..) = stage.requests.remove(0);
    let answer = ends_in(4, &stage);
    assert_eq!(stage.agent.answered(stage.now, ALICE, id, &answer), Err(Unusable::Over));
    stage.settle();
    stage.pass(4);
    let (id, ..) = stage.requests.remove(0);
    let answer = ends_in(5, &stage);
    assert_eq!(stage.agent.answered(stage.now, ALICE, id, &answer), Ok(()));
}

#[test]
fn the_kernel_learns_how_a_grants_tokens_travel() {
    let mut stage = Stage::alice();
    for (port, carrier) in [(1, Carrier::Tail), (2, Carrier::Shim)] {
        stage.queued(tcp(1, port), 1);
        let grant = stage.grant(tcp(1, port), port.into()).unwrap_or_else(|_| panic!("a grant"));
        let (id, ..) = stage.requests.remove(0);
        let answer = Ok(Grant { carrier, ..grant });
        stage.agent.answered(stage.now, ALICE, id, &answer).expect("it makes sense");
        stage.settle();
        assert_eq!(stage.entry(tcp(1, port)).expect("an entry").carrier, carrier as u8);
    }
}

#[test]
fn a_question_by_hand_is_answered_without_a_packet() {
    let mut stage = Stage::alice();
    let Standing::Requested(id) = stage.agent.want(stage.now, ALICE, tcp(1, 22)) else { panic!() };
    assert_eq!(stage.agent.want(stage.now, ALICE, tcp(1, 22)), Standing::Requested(id));
    stage.settle();
    stage.answer(stage.grant(tcp(1, 22), 5));
    let Standing::Granted(view) = stage.agent.want(stage.now, ALICE, tcp(1, 22)) else { panic!() };
    assert_eq!((view.receiver.as_str(), view.rule.as_str()), ("lab", "policy.toml:1 lab"));
    let elsewhere = Destination { address: [198, 51, 100, 9].into(), ..tcp(1, 22) };
    assert_eq!(stage.agent.want(stage.now, ALICE, elsewhere), Standing::NotProtected);
    assert_eq!(stage.agent.want(stage.now, BOB, tcp(1, 22)), Standing::NotLoggedIn);
}

#[test]
fn an_authority_tells_the_time_for_its_own_person_only() {
    let mut stage = Stage::alice();
    stage.login(BOB);
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    let clocks = stage.clocks.clone();
    assert!(stage.agent.sync_clock(BOB, 4_102_444_800, stage.now, stage.now));
    stage.settle();
    stage.pass(2);
    assert_eq!((&stage.ended[..], stage.clocks.len()), (&[BOB][..], clocks.len()));
    let entry = stage.entry(tcp(1, 22)).expect("an entry");
    assert_eq!((entry.skew, u64::from(entry.until)), (0, UNIX + 297));
    stage.queued(tcp(1, 22), 2);
    assert_eq!(stage.sent, [(1, true), (2, true)]);
    // Even the last possible time does not stop the clock.
    stage.login(BOB);
    stage.agent.sync_clock(BOB, u64::MAX, stage.now, stage.now);
    stage.pass(2);
    assert_eq!((stage.ended.len(), stage.unix()), (2, UNIX + 4));
}

#[test]
fn tokens_follow_the_authoritys_clock_and_entries_end_by_this_machines() {
    let mut stage = Stage::alice();
    stage.queued(tcp(1, 22), 1);
    stage.answer(stage.grant(tcp(1, 22), 5));
    assert!(stage.agent.sync_clock(ALICE, UNIX + 90, stage.now, stage.now));
    stage.settle();
    let entry = stage.entry(tcp(1, 22)).expect("an entry");
    assert_eq!((entry.skew, u64::from(entry.until)), (90, UNIX + 207));
    // Corrections are rare, however often the authority's time changes.
    assert!(!stage.agent.sync_clock(ALICE, UNIX, stage.now, stage.now));
    stage.queued(tcp(2, 22), 2);
    stage.answer(stage.grant(tcp(2, 22), 6));
    let entry = stage.entry(tcp(2, 22)).expect("an entry");
    assert_eq!((entry.skew, u64::from(entry.until)), (90, UNIX + 297));
    assert_eq!(stage.agent.skew(ALICE), 90);
}
