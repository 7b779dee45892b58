//! The bytes that a person's day at work adds to the database, and the cost of a renewal.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. The yardstick of the day is the same day if every
//! renewal is recorded like a new grant. The yardstick of a renewal is the engine's work for a grant, which consists of
//! the decision and the MACs. The bench measures both in turn, for the same requests.

use api::GrantOwner;
use authority::keys::{Keyring, MasterKeys};
use authority::leases::{Leases, Place, Wanted};
use authority::storage::{
    Database, Issuance, LeaseTerms, Login, NewService, Operator, Proof, Recorded, Session, TokenHash,
};
use engine::issuing::grant::{Issue, Issued};
use engine::model::Sealing;
use engine::policy::{Compiled, Decision, Permit, Policy, Request, Subject};
use measure::{Bound, Figures};
use std::fmt::Write;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;
use wire::{Destination, Epoch, Flags, Holder};

const PERSONS: u64 = 50;
const RECEIVERS: u8 = 10;
const DAY: u64 = 8 * 3600;
/// Seconds between two renewals: an agent renews a grant of 300 s after two thirds of its lifetime.
const EVERY: u64 = 200;
const EPOCH: u32 = 3600;
/// The day begins within an epoch.
const START: u64 = 1_800_000_000 + 1234;
const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
/// Maximum number of bytes that a person's day adds to the database.
const DAY_BYTES: f64 = 8192.0;
/// Maximum cost of a renewal, as a multiple of the cost of the engine's work for a grant.
const RENEWAL: f64 = 2.0;
const ROUNDS: usize = 40;
const OF_ROUND: usize = 5000;

/// An authority's parts that issue grants, without a server.
struct World {
    policy: Compiled,
    keyring: Arc<Keyring>,
    leases: Leases,
}

impl World {
    fn new(database: &Database) -> Self {
        let keyring = Arc::new(Keyring::new(MasterKeys::parse(&[7; 32]).expect("a key"), EPOCH));
        let mut text = String::new();
        for number in 0..RECEIVERS {
            write!(
                text,
                "[[receivers]]\nname = \"server-{number}\"\naddress = \"203.0.113.{number}\"\nservices = \"tcp/22\"\n\
                 verifier = \"edge-{number}\"\n[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \
                 \"server-{number}\"\n"
            )
            .expect("text grows");
        }
        let policy = Policy::parse(&text, EPOCH).expect("a policy");
        let policy = Compiled::new(policy).expect("a policy that fits");
        let leases = Leases::new(keyring.clone(), database.numbering().expect("a key"), EPOCH);
        Self { policy, keyring, leases }
    }

    /// Decides a request, and calls `issue`, which issues the grant from the permit and the destination.
    fn decide<T>(&self, person: &str, receiver: u8, now: u64, issue: impl FnOnce(&Permit<'_>, Destination) -> T) -> T {
        let address = Ipv4Addr::new(203, 0, 113, receiver).into();
        let to = Destination { address, protocol: 6, port: 22 };
        let subject = Subject { source: Some(SOURCE), ..Subject::person(person) };
        let decision = self.policy.decide(&Request { subject, to, now });
        let Decision::Allowed(permit) = &decision else { panic!("the policy allows everything") };
        issue(permit, to)
    }

    fn issue(&self, permit: &Permit<'_>, to: Destination, holder: Holder, half: u32, now: u64) -> Issued {
        let key = self.keyring.issuing_key(&permit.receiver.verifier, Epoch::at(now, EPOCH)).expect("a key");
        let issue = Issue {
            terms: permit.terms,
            scope: permit.scope,
            until: permit.until,
            to,
            source: SOURCE,
            holder,
            chance: half.into(),
            now,
            epoch_length: EPOCH,
            max_lifetime: EPOCH,
            verifier_key: &key,
        };
        issue.issue().expect("a grant")
    }

    fn wanted<'a>(permit: &Permit<'a>, flags: Flags) -> Wanted<'a> {
        Wanted {
            verifier: permit.receiver.verifier.as_str().into(),
            receiver: permit.receiver.name.as_str().into(),
            rule: permit.label(),
            sealing: Sealing::NONE,
            place: Place::new(SOURCE, &permit.scope, flags),
        }
    }

    /// Answers a request as the server does: by another lease, or by a grant that it records. Returns whether it
    /// recorded one. Without `renews`, every request is recorded.
    fn ask(&self, database: &mut Database, person: &Person, receiver: u8, now: u64, renews: bool) -> bool {
        self.decide(&person.name, receiver, now, |permit, to| {
            let first = self.issue(permit, to, person.holder, 0, now);
            let wanted = Self::wanted(permit, first.flags());
            if renews && let Some(lease) = self.leases.find(&person.token, &wanted, 0, now) {
                let issued = self.issue(permit, to, person.holder, lease.half, now);
                if issued.handle().0 as u32 == lease.half && u64::from(issued.expires) <= lease.until {
                    return false;
                }
            }
            let (number, issued) = loop {
                let (number, half) = self.leases.begin();
                let issued = self.issue(permit, to, person.holder, half, now);
                if issued.handle().0 as u32 == half {
                    break (number, issued);
                }
            };
            let until = self.leases.until(now, START + DAY + 4 * 3600, permit.terms.lifetime);
            let of = (LeaseTerms { number, issued: now, lease: permit.terms.lifetime }, until);
            let issuance = Issuance {
                session: person.token,
                owner: GrantOwner {
                    handle: issued.handle().0,
                    person: person.name.clone(),
                    device: "laptop".into(),
                    receiver: permit.receiver.name.clone(),
                    rule: permit.rule.label().to_string(),
                    issued: now,
                    expires: issued.expires.into(),
                    class: 0,
                    sealing: None,
                },
                verifier: permit.receiver.verifier.clone(),
                source: SOURCE,
                to,
                scope: issued.scope,
                flags: issued.flags(),
                renewable: renews.then_some(of),
            };
            let recorded = database.add_grants([&issuance]).expect("the grant is recorded");
            assert_eq!(recorded, [if renews { Recorded::Renewable } else { Recorded::Done }]);
            if renews {
                self.leases.insert(person.token, wanted.into_owned(), issued.handle(), of);
            }
            true
        })
    }
}

/// A person who is logged in.
struct Person {
    name: String,
    token: TokenHash,
    holder: Holder,
}

impl Person {
    fn session(name: &str, holder: Holder) -> Session {
        let (device, tags, groups) = ("laptop".into(), Vec::new(), Vec::new());
        Session { person: name.into(), device, expires: START + DAY + 4 * 3600, tags, groups, ends: None, holder }
    }

    fn log_in(database: &mut Database, number: u64) -> Self {
        let (name, mut token) = (format!("person-{number}"), [0; 32]);
        token[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let proof = Proof::Service(number.to_string());
        let session = Self::session(&name, Holder::default());
        let login = database.add_session(token, &session, &proof, SOURCE, START).expect("a login");
        let Login::Done { holder, .. } = login else { panic!("{login:?}") };
        Self { name, token, holder }
    }
}

fn main() {
    let mut figures = Figures::default();
    let (before, after) = (day(false), day(true));
    figures.count("store.bytes_per_person_day", "B", after, Bound::AtMost(DAY_BYTES));
    figures.count("store.bytes_per_person_day_if_renewals_are_recorded", "B", before, Bound::None);
    figures.add_pairs("authority.renew_ns", "ns", &renewals(), Bound::AtMost(RENEWAL));
    figures.print();
}

/// Returns the number of bytes per person that a day adds to the database, with login and logout.
fn day(renews: bool) -> f64 {
    let room = tempfile::tempdir().expect("a directory");
    let file = room.path().join("authority.db");
    Database::create(&file, b"an authority").expect("a database");
    let mut database = Database::open(&file).expect("a database");
    for number in 0..PERSONS {
        let (name, key) = (format!("person-{number}"), number.to_string());
        let service = NewService { name: &name, key: &key, groups: &[], tags: &[] };
        database.add_service(&service, &Operator::current(), START).expect("an account");
    }
    // SQLite moves everything from its log into the file when the last connection is closed.
    drop(database);
    let length = || std::fs::metadata(&file).expect("the file").len();
    let empty = length();
    let mut database = Database::open(&file).expect("a database");
    let world = World::new(&database);
    let persons: Vec<_> = (0..PERSONS).map(|number| Person::log_in(&mut database, number)).collect();
    let mut recorded = 0;
    for now in (START..START + DAY).step_by(EVERY as usize) {
        for person in &persons {
            for receiver in 0..RECEIVERS {
                recorded += u64::from(world.ask(&mut database, person, receiver, now, renews));
            }
        }
    }
    for person in &persons {
        let session = Person::session(&person.name, person.holder);
        database.end_session(person.token, &session, SOURCE, START + DAY).expect("the end of a session");
    }
    drop(database);
    eprintln!("leases: {:.1} records per person", recorded as f64 / PERSONS as f64);
    (length() - empty) as f64 / PERSONS as f64
}

/// Returns pairs of costs in nanoseconds: of a renewal, and of the engine's work for a grant.
fn renewals() -> Vec<(f64, f64)> {
    let room = tempfile::tempdir().expect("a directory");
    let file = room.path().join("authority.db");
    Database::create(&file, b"an authority").expect("a database");
    let mut database = Database::open(&file).expect("a database");
    let service = NewService { name: "person-0", key: "0", groups: &[], tags: &[] };
    database.add_service(&service, &Operator::current(), START).expect("an account");
    let world = World::new(&database);
    let person = Person::log_in(&mut database, 0);
    for receiver in 0..RECEIVERS {
        world.ask(&mut database, &person, receiver, START, true);
    }
    let mut next = 0_u8;
    let mut receiver = move || {
        next = (next + 1) % RECEIVERS;
        next
    };
    let mut time = |renews: bool| {
        let begun = Instant::now();
        for _ in 0..OF_ROUND {
            world.decide(&person.name, receiver(), START + EVERY, |permit, to| {
                if !renews {
                    black_box(world.issue(permit, to, person.holder, 1, START + EVERY).expires);
                    return;
                }
                let wanted = World::wanted(permit, Flags::PORT);
                let lease = world.leases.find(&person.token, &wanted, 0, START + EVERY).expect("a lease");
                black_box(world.issue(permit, to, person.holder, lease.half, START + EVERY).expires);
            });
        }
        begun.elapsed().as_secs_f64() * 1e9 / OF_ROUND as f64
    };
    time(true);
    (0..ROUNDS).map(|_| (time(true), time(false))).collect()
}
