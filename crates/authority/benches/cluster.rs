//! The time from a change until it is in force at every member of a cluster. The cluster has three authorities and
//! three members of etcd, all on this machine.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. `cluster.apply_ms` is the median time until `vouchsafe
//! authority policy apply` returns. After that, the bench checks that every member has the policy. `consent.change_ms`
//! is the median time until a change of a consent is answered: a delegate allows a request at the console, or the
//! person who has the consent withdraws it by the API. The figure is the larger one of the two medians. After each
//! change, the bench checks that every member grants, or refuses, access by this consent. The yardstick is the time of
//! one write to etcd, which waits for the disks of two of etcd's members.

use api::{AccessRequest, GrantRequest};
use authority::cluster::bundle::{self, Etcd as Reach};
use authority::storage::{Database, Login, NewService, Operator, Proof, Session};
use authority::{Directory, Server, admin, now};
use client::{Authority, Error};
use etcd::stage::{Plan, Stage};
use etcd::{Etcd, Op, Txn};
use measure::{Bound, Figures, median};
use openidconnect::url::form_urlencoded::Serializer;
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use wire::Holder;

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 41;
/// Rounds before those that are counted.
const WARM: usize = 5;
/// Maximum of the median times, in milliseconds.
const MOST: f64 = 100.0;
/// Number of people who ask in turn, because each of them may ask 32 times a day.
const ASKERS: usize = 3;
/// The person who decides, and their password.
const DELEGATE: &str = "dora";
const PASSWORD: &str = "correct horse battery";
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() {
    let stage = Stage::start(Plan::of(3)).expect("three members of etcd");
    let etcd = Etcd::connect(&stage.settings()).expect("a client of etcd");
    let room = tempfile::tempdir().expect("a directory");
    let directories = MEMBERS.map(|name| Directory::at(room.path().join(name)));
    let servers = start(&stage, &directories, room.path()).await;
    let [first, ..] = &directories;
    let file = room.path().join("next.toml");
    let (mut applied, mut written) = (Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let text = policy(round);
        std::fs::write(&file, &text).expect("a policy");
        let write = Op::Put { key: "bench".into(), value: round.to_string().into_bytes(), lease: None };
        let write = Txn { success: vec![write], ..Txn::default() };
        let begun = Instant::now();
        tokio::task::block_in_place(|| etcd.txn(&write)).expect("etcd writes");
        let once = begun.elapsed();
        let begun = Instant::now();
        let said = admin::apply_policy(first, Some(&file)).await.expect("the policy is applied");
        let all = begun.elapsed();
        assert!(said.contains("in force at b, c, too"), "{said}");
        for directory in &directories {
            let own = std::fs::read_to_string(directory.policy()).expect("a member's policy");
            assert!(own == text, "{} has another policy", directory.path().display());
        }
        if round >= WARM {
            applied.push(all.as_secs_f64() * 1e3);
            written.push(once.as_secs_f64() * 1e3);
        }
    }
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let (allowed, withdrawn) = consents(first, &addresses).await;
    for server in servers {
        server.stop().await;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!("cluster: load average {}", load.trim());
    let mut figures = Figures::default();
    figures.count("cluster.apply_ms", "ms", median(&applied), Bound::AtMost(MOST));
    figures.count("cluster.apply_p90_ms", "ms", measure::quantile(&applied, 0.9), Bound::None);
    let (allow, withdraw) = (median(&allowed), median(&withdrawn));
    figures.count("consent.change_ms", "ms", allow.max(withdraw), Bound::AtMost(MOST));
    figures.count("consent.allow_ms", "ms", allow, Bound::None);
    figures.count("consent.withdraw_ms", "ms", withdraw, Bound::None);
    figures.count("cluster.etcd_write_ms", "ms", median(&written), Bound::None);
    figures.print();
}

/// Starts the three authorities, and waits until all of them may record changes.
async fn start(stage: &Stage, directories: &[Directory; 3], room: &std::path::Path) -> Vec<Server> {
    let [first, others @ ..] = directories;
    // Each member must know its own URL before it starts, so the ports are chosen here.
    let ports = MEMBERS.map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let addresses = ports.each_ref().map(|port| port.local_addr().expect("its address"));
    drop(ports);
    first.init(&["127.0.0.1".into()], addresses[0]).expect("a new authority");
    std::fs::write(first.policy(), policy(0)).expect("a policy");
    populate(first).await;
    let reach = Reach { endpoints: stage.endpoints(), ca: None, certificate: None, key: None };
    let url = |address: SocketAddr| format!("https://{address}");
    bundle::init(first, &reach, MEMBERS[0], &url(addresses[0])).expect("a cluster");
    let mut servers = vec![serve(first).await];
    for (number, directory) in others.iter().enumerate() {
        let (name, address) = (MEMBERS[number + 1], addresses[number + 1]);
        let invitation = room.join(format!("invitation-{name}"));
        bundle::invite(first, name, &[], &url(address), &invitation).expect("an invitation");
        bundle::join(directory, &invitation, Some(address), &[]).expect("a member");
        servers.push(serve(directory).await);
    }
    servers
}

async fn serve(directory: &Directory) -> Server {
    let server = Server::start(directory.clone(), None).await.expect("the server starts");
    let caller = caller(directory, server.address());
    let begun = Instant::now();
    while let Err(error) = caller.health().await {
        assert!(begun.elapsed() < PATIENCE, "the member does not reach etcd: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server
}

fn caller(directory: &Directory, address: SocketAddr) -> Authority {
    let ca = std::fs::read(directory.ca()).expect("the CA's certificate");
    Authority::new(&format!("https://{address}"), Some(&ca)).expect("a client")
}

/// Adds the delegate's account, and logs in the people who ask for access.
async fn populate(directory: &Directory) {
    let config = directory.path().join("authority.toml");
    let text = std::fs::read_to_string(&config).expect("its configuration");
    let console = "console = { url = \"https://authority.example.org:8443\", administrators = [\"person:ops\"] }";
    std::fs::write(&config, format!("{console}\n{text}")).expect("its configuration");
    admin::add_account(directory, DELEGATE, PASSWORD, false).await.expect("an account");
    let mut database = Database::open(&directory.database()).expect("the database");
    for number in 0..ASKERS {
        let (person, key) = (asker(number), hex::encode(number.to_be_bytes()));
        let service = NewService { name: &person, key: &key, groups: &[], tags: &[] };
        database.add_service(&service, &Operator::current(), now()).expect("a service account");
        let (device, tags, groups, holder) = ("rack".into(), Vec::new(), Vec::new(), Holder::default());
        let session = Session { person, device, expires: now() + 3600, tags, groups, ends: None, holder };
        let (hash, proof) = (Sha256::digest(token(number)).into(), Proof::Service(key));
        let login = database.add_session(hash, &session, &proof, Ipv4Addr::LOCALHOST.into(), now());
        assert!(matches!(login, Ok(Login::Done { .. })), "{number} is logged in");
    }
}

fn asker(number: usize) -> String {
    format!("asker{number}")
}

/// Returns the token of an asker's session.
fn token(number: usize) -> String {
    hex::encode(Sha256::digest(asker(number)))
}

/// Changes consents at the first member. Returns the milliseconds until each change was answered: first the times for
/// given consents, then the times for withdrawn consents.
async fn consents(directory: &Directory, addresses: &[SocketAddr]) -> (Vec<f64>, Vec<f64>) {
    let mut console = Console::log_in(directory, addresses[0]).await;
    let (mut allowed, mut withdrawn) = (Vec::new(), Vec::new());
    for round in 0..WARM + ROUNDS {
        let token = token(round % ASKERS);
        let members: Vec<_> = addresses.iter().map(|address| caller(directory, *address).with_token(&token)).collect();
        let (receiver, services, reason) = ("db".into(), Vec::new(), "the invoices".into());
        let request = AccessRequest { receiver, services, lifetime: None, reason };
        let id = members[0].ask_access(&request).await.expect("a request for access").id;
        check(&members, false).await;
        let begun = Instant::now();
        console.allow(&id).await;
        let given = begun.elapsed();
        check(&members, true).await;
        let begun = Instant::now();
        members[0].withdraw_access(&id).await.expect("the consent is withdrawn");
        let ended = begun.elapsed();
        check(&members, false).await;
        if round >= WARM {
            allowed.push(given.as_secs_f64() * 1e3);
            withdrawn.push(ended.as_secs_f64() * 1e3);
        }
    }
    (allowed, withdrawn)
}

/// Checks that every member allows access by the consent, or that none of them does.
async fn check(members: &[Authority], expected: bool) {
    let address = Ipv4Addr::new(203, 0, 113, 200).into();
    let request = GrantRequest { address, protocol: 6, port: 5432, consented: false, in_band: false };
    for (member, name) in members.iter().zip(MEMBERS) {
        match member.grant(&request).await {
            Ok(_) => assert!(expected, "{name} still allows access"),
            Err(Error::Denied(_)) => assert!(!expected, "{name} does not allow access yet"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// A browser at the console of one member, in which the delegate is logged in.
struct Console {
    browser: reqwest::Client,
    base: String,
    cookies: BTreeMap<String, String>,
    /// The token of the forms.
    form: String,
}

impl Console {
    async fn log_in(directory: &Directory, address: SocketAddr) -> Self {
        // The clients of the API possibly have installed a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = std::fs::read(directory.ca()).expect("the CA's certificate");
        let ca = reqwest::Certificate::from_pem(&pem).expect("a certificate");
        let browser = reqwest::Client::builder().tls_certs_only([ca]).redirect(reqwest::redirect::Policy::none());
        let browser = browser.build().expect("a browser");
        let (base, cookies, form) = (format!("https://{address}"), BTreeMap::new(), String::new());
        let mut console = Self { browser, base, cookies, form };
        console.form = console.open("/console/login").await;
        let fields = [("person", DELEGATE), ("password", PASSWORD), ("code", ""), ("to", "")];
        console.send("/console/login", &fields).await;
        console.form = console.open("/console/access").await;
        console
    }

    async fn allow(&mut self, id: &str) {
        let fields = [("id", id), ("verdict", "allow"), ("services", "tcp/5432"), ("for", "8h"), ("note", "")];
        self.send("/console/access/requests/decide", &fields).await;
    }

    /// Opens a page and returns the token of its forms.
    async fn open(&mut self, path: &str) -> String {
        let page = self.browser.get(format!("{}{path}", self.base)).header("sec-fetch-site", "none");
        let page = self.ask(page).await.text().await.expect("a page");
        let (_, rest) = page.split_once("name=\"form\" value=\"").expect("a page with a form");
        rest.split('"').next().expect("a token").to_owned()
    }

    /// Sends a form, which must lead to another page.
    async fn send(&mut self, path: &str, fields: &[(&str, &str)]) {
        let mut body = Serializer::new(String::new());
        body.append_pair("form", &self.form).extend_pairs(fields);
        let form = self.browser.post(format!("{}{path}", self.base)).header("origin", &self.base);
        let form = form.header("sec-fetch-site", "same-origin").body(body.finish());
        let answer = self.ask(form.header("content-type", "application/x-www-form-urlencoded")).await;
        assert!(answer.headers().contains_key(LOCATION), "{path}: {}", answer.text().await.unwrap_or_default());
    }

    async fn ask(&mut self, request: reqwest::RequestBuilder) -> reqwest::Response {
        let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let answer = request.header(COOKIE, cookies.join("; ")).send().await.expect("the console answers");
        for cookie in answer.headers().get_all(SET_COOKIE) {
            let pair = cookie.to_str().ok().and_then(|cookie| cookie.split(';').next()?.split_once('='));
            let (name, value) = pair.expect("a cookie");
            self.cookies.insert(name.into(), value.into());
        }
        answer
    }
}

/// Returns a policy of a hundred receivers, which differs from round to round, and of one receiver about which the
/// delegate decides.
fn policy(round: usize) -> String {
    let receiver = |number: usize| {
        format!(
            "[[receivers]]\nname = \"r{number}\"\naddress = \"203.0.113.{number}\"\nservices = \"tcp/22\"\n\
             verifier = \"edge\"\n[[rules]]\naction = \"allow\"\nwho = \"person:p{}\"\nto = \"r{number}\"\n",
            number + round
        )
    };
    let askers: Vec<_> = (0..ASKERS).map(|number| format!("\"person:{}\"", asker(number))).collect();
    let delegated = format!(
        "[[receivers]]\nname = \"db\"\naddress = \"203.0.113.200\"\nservices = \"tcp/5432\"\nverifier = \"edge\"\n\
         [[delegations]]\nname = \"dba\"\nto = \"db\"\ndelegates = \"person:{DELEGATE}\"\nwho = [{}]\n\
         lifetime_max = \"1d\"\n",
        askers.join(", ")
    );
    (0..100).map(receiver).chain([delegated]).collect()
}
