use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

const ALWAYS_OPEN: fn(NonZeroU16) -> bool = |_| true;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn receiver(prefix: &str, service: Service, number: u32) -> Receiver {
    Receiver { prefix: net(prefix), service, number, verifier: 1 }
}

const SSH: Service = Service { protocol: 6, first_port: 22, last_port: 22 };

fn alice() -> Sender {
    Sender::subject(1).unwrap()
}

fn staff() -> Sender {
    Sender::subject(2).unwrap()
}

fn entry(sender: Sender, action: Action, priority: u16, revision: u64) -> Entry {
    Entry { sender, action, priority, revision, terms: 0, window: None }
}

fn to(address: &str, protocol: u8, port: u16) -> Destination {
    Destination { address: address.parse().unwrap(), protocol, port }
}

/// Returns the decision for Alice, a member of staff, from 192.0.2.7.
fn decide(book: &Rulebook, to: Destination) -> Decision {
    let request = Request { subjects: &[alice(), staff()], source: "192.0.2.7".parse().ok(), to };
    book.decide(&request, ALWAYS_OPEN).decision
}

fn ruling(book: &Rulebook, to: Destination) -> Ruling {
    match decide(book, to) {
        Decision::Decided(ruling) => ruling,
        other => panic!("{other:?}"),
    }
}

fn action(book: &Rulebook, address: &str) -> Action {
    ruling(book, to(address, 6, 22)).entry.action
}

#[test]
fn the_highest_priority_decides_then_the_freshest_then_denial() {
    let host = receiver("203.0.113.1/32", SSH, 0);
    let mut book = Rulebook::default();
    book.set(host, &[entry(alice(), Action::Allow, 200, 1), entry(staff(), Action::Deny, 100, 2)]);
    assert_eq!(action(&book, "203.0.113.1"), Action::Allow);
    book.insert(&host, entry(staff(), Action::Deny, 200, 3));
    assert_eq!(action(&book, "203.0.113.1"), Action::Deny);
    book.insert(&host, entry(Sender::EVERYONE, Action::Allow, 200, 4));
    assert_eq!(action(&book, "203.0.113.1"), Action::Allow);
    book.insert(&host, entry(alice(), Action::Deny, 200, 4));
    assert_eq!(action(&book, "203.0.113.1"), Action::Deny);
}

#[test]
fn taking_an_entry_away_brings_back_what_it_beat() {
    let host = receiver("203.0.113.1/32", SSH, 0);
    let deny = entry(alice(), Action::Deny, 200, 2);
    let mut book = Rulebook::default();
    book.set(host, &[entry(alice(), Action::Allow, 100, 1)]);
    assert!(book.insert(&host, deny));
    assert_eq!(action(&book, "203.0.113.1"), Action::Deny);
    assert!(book.remove(&host, &deny) && !book.remove(&host, &deny));
    assert_eq!(action(&book, "203.0.113.1"), Action::Allow);
    assert!(book.replace(&host, &entry(alice(), Action::Allow, 100, 1), deny));
    assert_eq!(action(&book, "203.0.113.1"), Action::Deny);
    assert!(book.withdraw(&host) && !book.withdraw(&host) && !book.insert(&host, deny));
    assert_eq!(decide(&book, to("203.0.113.1", 6, 22)), Decision::NoReceiver);
}

#[test]
fn receivers_around_a_host_apply_too_and_the_most_specific_names_the_verifier() {
    let (network, host) = (receiver("203.0.113.0/24", Service::ALL, 0), receiver("203.0.113.1/32", SSH, 1));
    let host = Receiver { verifier: 2, ..host };
    let mut book = Rulebook::default();
    book.set(network, &[entry(alice(), Action::Allow, 300, 1)]);
    book.set(host, &[entry(alice(), Action::Deny, 200, 2)]);
    let decided = ruling(&book, to("203.0.113.1", 6, 22));
    assert_eq!((decided.entry.action, decided.of, decided.receiver), (Action::Allow, network, host));
    assert_eq!(ruling(&book, to("203.0.113.1", 6, 23)).receiver, network);
}

#[test]
fn without_an_entry_the_answer_is_no() {
    let mut book = Rulebook::default();
    let host = receiver("203.0.113.1/32", SSH, 0);
    book.set(host, &[entry(Sender::subject(9).unwrap(), Action::Allow, 1, 1)]);
    assert_eq!(decide(&book, to("203.0.113.1", 6, 22)), Decision::DefaultDeny { receiver: host });
    for elsewhere in [to("203.0.113.1", 6, 23), to("203.0.113.1", 17, 22), to("203.0.113.2", 6, 22)] {
        assert_eq!(decide(&book, elsewhere), Decision::NoReceiver);
    }
}

#[test]
fn addresses_and_networks_are_senders() {
    let host = receiver("2001:db8::1/128", Service::ALL, 0);
    let mut book = Rulebook::default();
    let (inside, outside, this) =
        (book.network(net("192.0.2.0/24")), book.network(net("198.51.100.0/24")), book.network(net("192.0.2.7/32")));
    book.set(host, &[entry(outside, Action::Allow, 9, 9), entry(inside, Action::Deny, 5, 1)]);
    assert_eq!(action(&book, "2001:db8::1"), Action::Deny);
    book.insert(&host, entry(this, Action::Allow, 5, 2));
    assert_eq!(action(&book, "2001:db8::1"), Action::Allow);
    assert_eq!(book.network(net("192.0.2.0/24")), inside);
}

#[test]
fn entries_whose_window_is_closed_dont_match() {
    let host = receiver("203.0.113.1/32", SSH, 0);
    let night = NonZeroU16::new(3);
    let mut book = Rulebook::default();
    let closed = Entry { window: night, ..entry(alice(), Action::Deny, 200, 1) };
    book.set(host, &[entry(alice(), Action::Allow, 100, 1), closed]);
    assert_eq!(action(&book, "203.0.113.1"), Action::Deny);
    let request = Request { subjects: &[alice()], source: "192.0.2.7".parse().ok(), to: to("203.0.113.1", 6, 22) };
    let evaluation = book.decide(&request, |window| Some(window) != night);
    let Decision::Decided(by_day) = evaluation.decision else { panic!() };
    assert_eq!((by_day.entry.action, evaluation.windows()), (Action::Allow, &[night.unwrap()][..]));
}

#[test]
fn ports_of_a_protocol_without_ports_dont_matter() {
    let mut book = Rulebook::default();
    let ping = Service { protocol: 1, first_port: 0, last_port: 0 };
    book.set(receiver("203.0.113.1/32", ping, 0), &[entry(alice(), Action::Allow, 1, 1)]);
    assert_eq!(ruling(&book, to("203.0.113.1", 1, 8)).entry.action, Action::Allow);
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let host = receiver("203.0.113.1/32", SSH, 0);
    let mut book = Rulebook::default();
    book.set(host, &[entry(alice(), Action::Allow, 100, 1)]);
    let before = book.clone();
    book.insert(&host, entry(alice(), Action::Deny, 100, 2));
    assert_eq!((action(&before, "203.0.113.1"), action(&book, "203.0.113.1")), (Action::Allow, Action::Deny));
}

/// A permit moves back and forth between a host's list and its network's while readers follow: each state has it in one
/// of them, so a reader that saw a mixture of states would find it in neither.
#[test]
fn readers_see_whole_states_while_a_writer_writes() {
    let (network, host) = (receiver("203.0.113.0/24", SSH, 0), receiver("203.0.113.1/32", SSH, 1));
    let permit = entry(alice(), Action::Allow, 100, 1);
    let others: Vec<_> = (10..1000).map(|n| entry(Sender::subject(n).unwrap(), Action::Deny, 1, n.into())).collect();
    let mut book = Rulebook::default();
    book.set(network, &others);
    book.set(host, &others);
    book.insert(&host, permit);
    let published = arc_swap::ArcSwap::from_pointee(book);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            loop {
                assert_eq!(action(&published.load(), "203.0.113.1"), Action::Allow);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        (0..3).for_each(|_| drop(scope.spawn(read)));
        let (mut from, mut to) = (host, network);
        let moved = (0..300).all(|_| {
            let mut next = Rulebook::clone(&published.load());
            let moved = next.remove(&from, &permit) && next.insert(&to, permit);
            published.store(next.into());
            (from, to) = (to, from);
            moved
        });
        // Assert only after this: otherwise readers would loop for ever.
        done.store(true, Ordering::Relaxed);
        assert!(moved);
    });
}

#[test]
fn a_sender_with_many_entries_hides_no_other() {
    let host = receiver("203.0.113.1/32", SSH, 0);
    let mut entries: Vec<_> = (0..5000).map(|revision| entry(staff(), Action::Deny, 1, revision)).collect();
    entries.extend((10..200).map(|n| entry(Sender::subject(n).unwrap(), Action::Allow, 2, u64::from(n))));
    let mut book = Rulebook::default();
    book.set(host, &entries);
    for n in 10..200 {
        let subjects = [Sender::subject(n).unwrap(), staff()];
        let request = Request { subjects: &subjects, source: "192.0.2.7".parse().ok(), to: to("203.0.113.1", 6, 22) };
        let Decision::Decided(ruling) = book.decide(&request, ALWAYS_OPEN).decision else { panic!() };
        assert_eq!((ruling.entry.action, ruling.entry.revision), (Action::Allow, n.into()));
    }
    assert_eq!(ruling(&book, to("203.0.113.1", 6, 22)).entry.revision, 4999);
}

fn scope(book: &Rulebook, address: &str, granularity: Granularity) -> Scope {
    let to = to(address, 6, 22);
    let request = Request { subjects: &[alice(), staff()], source: "192.0.2.7".parse().ok(), to };
    book.decide(&request, ALWAYS_OPEN).scope(&ruling(book, to), granularity)
}

fn wide(prefix: &str) -> Scope {
    Scope { prefix: net(prefix), service: None }
}

fn narrow(address: &str) -> Scope {
    Scope { prefix: net(&format!("{address}/32")), service: Some((6, 22)) }
}

#[test]
fn a_wide_grant_is_as_wide_as_nothing_beats_it() {
    let network = receiver("203.0.113.0/24", Service::ALL, 0);
    let mut book = Rulebook::default();
    book.set(network, &[entry(alice(), Action::Allow, 100, 2), entry(staff(), Action::Deny, 100, 1)]);
    let (application, host, all) = (Granularity::Application, Granularity::Host, Granularity::Network);
    assert_eq!(scope(&book, "203.0.113.1", application), narrow("203.0.113.1"));
    assert_eq!(scope(&book, "203.0.113.1", host), wide("203.0.113.1/32"));
    assert_eq!(scope(&book, "203.0.113.1", all), wide("203.0.113.0/24"));
    // Another service of one host is denied: no grant may open all of that host.
    book.set(
        receiver("203.0.113.1/32", Service { first_port: 80, last_port: 80, ..SSH }, 1),
        &[entry(staff(), Action::Deny, 200, 1)],
    );
    assert_eq!(scope(&book, "203.0.113.1", host), narrow("203.0.113.1"));
    assert_eq!(scope(&book, "203.0.113.2", host), wide("203.0.113.2/32"));
    assert_eq!(scope(&book, "203.0.113.2", all), narrow("203.0.113.2"));
}

#[test]
fn a_wide_grant_is_narrowed_by_what_holds_at_other_times_and_by_other_verifiers() {
    let network = receiver("203.0.113.0/24", Service::ALL, 0);
    let mut book = Rulebook::default();
    let at_night = Entry { window: NonZeroU16::new(1), ..entry(staff(), Action::Deny, 200, 1) };
    book.set(network, &[entry(alice(), Action::Allow, 100, 2), at_night]);
    let request =
        Request { subjects: &[alice(), staff()], source: "192.0.2.7".parse().ok(), to: to("203.0.113.1", 6, 22) };
    let evaluation = book.decide(&request, |_| false);
    let Decision::Decided(by_day) = evaluation.decision else { panic!() };
    assert_eq!(evaluation.scope(&by_day, Granularity::Host), narrow("203.0.113.1"));

    book.set(network, &[entry(alice(), Action::Allow, 100, 2)]);
    assert_eq!(scope(&book, "203.0.113.1", Granularity::Host), wide("203.0.113.1/32"));
    book.set(Receiver { verifier: 2, ..receiver("203.0.113.1/32", SSH, 1) }, &[]);
    assert_eq!(scope(&book, "203.0.113.1", Granularity::Host), narrow("203.0.113.1"));
}

/// A change of a list of a thousand entries must not pack the list again, or there can't be ten thousand in a second.
#[test]
fn most_changes_of_a_list_copy_it() {
    let numbered = |revision: u64| {
        let sender = Sender::subject(1 + (revision as u32).wrapping_mul(7919) % 100_000).unwrap();
        let action = if revision.is_multiple_of(4) { Action::Deny } else { Action::Allow };
        entry(sender, action, 100 * (1 + (revision % 3) as u16), revision)
    };
    let mut list = list::List::pack(&(0..1000).map(numbered).collect::<Vec<_>>());
    let (mut copied, rounds) = (0, 2000);
    for round in 0..rounds {
        let old = list.entries().nth(round as usize * 389 % 1000).unwrap();
        list = list.without(&old).expect("it contains the entry");
        assert!(list.without(&old).is_none());
        // Revisions are those of all lists together, so those of one list have gaps.
        let new = numbered(5000 + 17 * round);
        list = match list.with(&new) {
            Some(with) => {
                copied += 1;
                with
            }
            None => list::List::pack(&list.entries().chain([new]).collect::<Vec<_>>()),
        };
        assert!(list.entries().count() == 1000 && list.entries().any(|entry| entry == new));
    }
    assert!(copied > rounds * 9 / 10, "{copied} of {rounds}");
}

#[test]
fn an_entry_takes_eight_bytes_at_most() {
    let entries: Vec<_> = (0..1000u32)
        .map(|n| Entry {
            sender: Sender::subject(1 + n * 7919).unwrap(),
            action: if n % 4 == 0 { Action::Deny } else { Action::Allow },
            priority: (n % 3) as u16 * 100,
            revision: 5_000_000_000 + u64::from(n),
            terms: (n % 4) as u16,
            window: NonZeroU16::new((n % 3) as u16),
        })
        .collect();
    let bytes = list::List::pack(&entries).bytes() + size_of::<(IpNet, Listed)>();
    assert!(bytes <= 8 * entries.len(), "{bytes} for {}", entries.len());
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let sender = prop_oneof![0u32..40, 0..u32::MAX];
    let priority = prop_oneof![0u16..3, any::<u16>()];
    let revision = prop_oneof![0u64..9, any::<u64>()];
    (sender, any::<bool>(), priority, revision, any::<u16>(), any::<u16>()).prop_map(
        |(sender, deny, priority, revision, terms, window)| Entry {
            sender: Sender(sender),
            action: if deny { Action::Deny } else { Action::Allow },
            priority,
            revision,
            terms: terms % 5,
            window: NonZeroU16::new(window % 3),
        },
    )
}

proptest! {
    #[test]
    fn several_are_decided_as_each_by_itself(
        lists in prop::collection::vec((0u8..4, 28u8..=32, prop::collection::vec(any_entry(), 0..40)), 0..6),
        senders_of in prop::collection::vec((0u8..18, prop::collection::vec((1u32..40).prop_map(Sender), 0..6)), 0..9),
    ) {
        let mut book = Rulebook::default();
        let networks = [24, 32].map(|length| book.network(IpNet::new([192, 0, 2, 0].into(), length).unwrap()));
        for (number, (place, length, mut entries)) in lists.into_iter().enumerate() {
            entries.extend(networks.map(|sender| entry(sender, Action::Allow, 1, number as u64)));
            let prefix = IpNet::new([203, 0, 113, place * 8].into(), length).unwrap().to_string();
            book.set(receiver(&prefix, if number == 1 { SSH } else { Service::ALL }, number as u32), &entries);
        }
        let requests: Vec<_> = senders_of.iter().enumerate().map(|(number, (host, subjects))| Request {
            subjects,
            source: (number % 3 > 0).then(|| [192, 0, 2, host % 2].into()),
            to: to(&format!("203.0.113.{host}"), 6, if number % 2 == 0 { 22 } else { 80 }),
        }).collect();
        let open = |window: NonZeroU16| window.get() == 1;
        let mut batched = Vec::new();
        book.decide_all(&requests, |_, window| open(window), |place, evaluation| {
            batched.push((place, evaluation.decision, evaluation.windows().to_vec()));
        });
        let alone: Vec<_> = requests.iter().enumerate().map(|(place, request)| {
            let evaluation = book.decide(request, open);
            (place, evaluation.decision, evaluation.windows().to_vec())
        }).collect();
        prop_assert_eq!(batched, alone);
    }

    #[test]
    fn a_list_holds_what_it_was_given(mut entries in prop::collection::vec(any_entry(), 0..300)) {
        let list = list::List::pack(&entries);
        let mut listed: Vec<_> = list.entries().collect();
        listed.sort_unstable();
        entries.sort_unstable();
        prop_assert_eq!(listed, entries);
    }

    #[test]
    fn a_changed_copy_is_what_packing_anew_gives(
        mut entries in prop::collection::vec(any_entry(), 0..60),
        changes in prop::collection::vec((any_entry(), any::<prop::sample::Index>(), any::<bool>()), 0..200),
    ) {
        let mut list = list::List::pack(&entries);
        for (new, which, removes) in changes {
            if removes && !entries.is_empty() {
                let old = entries.swap_remove(which.index(entries.len()));
                list = list.without(&old).expect("it contains the entry");
            } else {
                // In half of the cases, the new entry is the freshest, as with changes of a running server.
                let freshest = entries.iter().map(|entry| entry.revision).max().unwrap_or(0);
                let new = if new.terms % 2 == 0 { Entry { revision: freshest.saturating_add(3), ..new } } else { new };
                entries.push(new);
                list = list.with(&new).unwrap_or_else(|| list::List::pack(&entries));
            }
            let mut listed: Vec<_> = list.entries().collect();
            listed.sort_unstable();
            let mut expected = entries.clone();
            expected.sort_unstable();
            prop_assert_eq!(listed, expected);
        }
        let senders: Vec<_> = (0..40).map(|sender| Scattered::from(Sender(sender))).collect();
        let matching = entries.iter().filter(|entry| entry.sender.0 < 40);
        let strongest = matching.max_by(|one, other| one.rank().cmp(&other.rank())).copied();
        let decided = list.deciding(&senders, list.look(&senders), |_| true);
        let of = |entry: Option<Entry>| entry.map(|entry| (entry.priority, entry.revision, entry.action));
        prop_assert_eq!(of(decided), of(strongest));
    }

    #[test]
    fn the_strongest_of_a_list_is_the_strongest_entry(
        entries in prop::collection::vec(any_entry(), 0..300),
        senders in prop::collection::vec((0u32..40).prop_map(Sender), 0..6),
    ) {
        let open = |window: NonZeroU16| window.get() == 1;
        let matching = entries.iter().filter(|e| senders.contains(&e.sender) && e.window.is_none_or(open));
        let strongest = matching.max_by(|one, other| one.rank().cmp(&other.rank()));
        let list = list::List::pack(&entries);
        let senders: Vec<_> = senders.into_iter().map(Scattered::from).collect();
        let decided = list.deciding(&senders, list.look(&senders), open);
        prop_assert!(decided.as_ref().map(Entry::rank) == strongest.map(Entry::rank), "{:?} {:?}", decided, strongest);
    }
}
