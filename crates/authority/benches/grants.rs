//! The cost, for the storage thread, of recording a grant after one person has had 100 000 grants, most of them expired
//! and half of them revoked.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. The yardstick is the cost of the person's first grants.

use api::GrantOwner;
use authority::storage::{Database, Issuance, Login, NewService, Operator, Proof, Recorded, Session, TokenHash};
use engine::policy::Scope;
use measure::{Bound, Figures, Yardstick, median};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use wire::{Destination, Flags, Holder};

const ROUNDS: u64 = 100;
const OF_ROUND: u64 = 1000;
const LIFETIME: u64 = 300;
/// Number of grants recorded in one transaction, as on a busy server.
const TOGETHER: usize = 8;
/// Number of rounds per figure.
const MEASURED: usize = 10;
/// Maximum ratio of a grant's cost to that of the first ones.
const BOUND: Bound = Bound::AtMost(1.5);
const PERSON: &str = "robot";
const START: u64 = 1_800_000_000;

/// A database with one account, and the generator of handles and tokens.
struct World {
    database: Database,
    _room: tempfile::TempDir,
    made: u64,
}

impl World {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let file = room.path().join("authority.db");
        Database::create(&file, b"an authority").expect("a database");
        let mut database = Database::open(&file).expect("a database");
        let service = NewService { name: PERSON, key: "00", groups: &[], tags: &[] };
        database.add_service(&service, &Operator::current(), START).expect("a service account");
        Self { database, _room: room, made: 0 }
    }

    fn session(&self) -> Session {
        let (person, device) = (PERSON.into(), "rack".into());
        let (tags, groups, holder) = (Vec::new(), Vec::new(), Holder::default());
        Session { person, device, expires: START + 1_000_000, tags, groups, ends: None, holder }
    }

    fn log_in(&mut self, now: u64) -> TokenHash {
        self.made += 1;
        let mut token = [0; 32];
        token[..8].copy_from_slice(&self.made.to_be_bytes());
        let (session, proof) = (self.session(), Proof::Service("00".into()));
        let login = self.database.add_session(token, &session, &proof, IpAddr::V4(Ipv4Addr::LOCALHOST), now);
        assert!(matches!(login.expect("a login"), Login::Done { .. }));
        token
    }

    fn log_out(&mut self, token: TokenHash, now: u64) {
        let session = self.session();
        self.database.end_session(token, &session, IpAddr::V4(Ipv4Addr::LOCALHOST), now).expect("the end of a session");
    }

    fn issuance(&mut self, session: TokenHash, now: u64) -> Issuance {
        self.made += 1;
        let address = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
        Issuance {
            session,
            owner: GrantOwner {
                // Handles come in random order.
                handle: self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                person: PERSON.into(),
                device: "rack".into(),
                receiver: "git".into(),
                rule: "policy.toml:1".into(),
                issued: now,
                expires: now + LIFETIME,
                class: 0,
                sealing: None,
            },
            verifier: "edge".into(),
            source: IpAddr::V4(Ipv4Addr::LOCALHOST),
            to: Destination { address, protocol: 6, port: 22 },
            scope: Scope { prefix: address.into(), service: Some((6, 22)) },
            flags: Flags::PORT,
            renewable: None,
        }
    }

    /// Requests this many grants. Returns the microseconds per grant and the number recorded.
    fn ask(&mut self, session: TokenHash, count: u64, now: u64) -> (f64, usize) {
        let issuances: Vec<_> = (0..count).map(|_| self.issuance(session, now)).collect();
        let (begun, mut recorded) = (Instant::now(), 0);
        for together in issuances.chunks(TOGETHER) {
            let answers = self.database.add_grants(together).expect("grants are recorded or refused");
            recorded += answers.iter().filter(|answer| **answer == Recorded::Done).count();
        }
        (begun.elapsed().as_secs_f64() * 1e6 / count as f64, recorded)
    }
}

fn main() {
    let mut figures = Figures::default();
    let (last, first) = in_turn();
    figures.add("grants.after_100k_us", "us", median(&last), &Yardstick::new(first), BOUND);
    let (attacked, quiet) = logged_out();
    figures.add("grants.after_logouts_us", "us", median(&attacked), &Yardstick::new(quiet), BOUND);
    figures.print();
}

/// Records rounds of 1000 grants, one round every 100 seconds, so that three rounds are unexpired at any time; every
/// other round is revoked. Returns the costs in the last rounds and in the first.
fn in_turn() -> (Vec<f64>, Vec<f64>) {
    let mut world = World::new();
    let mut costs = Vec::new();
    for round in 0..ROUNDS {
        let now = START + round * 100;
        let session = world.log_in(now);
        let (cost, recorded) = world.ask(session, OF_ROUND, now);
        assert_eq!(recorded as u64, OF_ROUND);
        costs.push(cost);
        if round % 2 == 0 {
            world.log_out(session, now);
        }
    }
    (costs[costs.len() - MEASURED..].to_vec(), costs[..MEASURED].to_vec())
}

/// Repeats "1024 grants, log out" within one grant's lifetime until the account reaches its limit, and then continues.
/// Returns the costs of requests beyond the limit, and the costs of the grants that were recorded before.
fn logged_out() -> (Vec<f64>, Vec<f64>) {
    let mut world = World::new();
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let session = world.log_in(START);
        let (cost, recorded) = world.ask(session, 1024, START);
        eprintln!("grants: {cost:.1} us a request, {recorded} of 1024 recorded");
        if recorded == 1024 { &mut quiet } else { &mut attacked }.push(cost);
        world.log_out(session, START);
    }
    (attacked, quiet)
}
