//! `vouchsafe ping`: shows what happens to a first packet, step by step, with the time that each step takes.

use super::access::way_to_ask;
use super::unexpected;
use super::words::{left, service};
use crate::at::At;
use anyhow::{Context, Result};
use clap::Args;
use engine::model::Receiver;
use reach::protocol::{self, Call, Grant, Reply, Rung, RungState, Standing};
use reach::{Places, Session, Timeouts};
use serde_json::{Value, json};
use shell::println;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use wire::Carrier;
use wire::packet::{TCP, UDP};

/// The port if the user names none and no receiver suggests one.
const DEFAULT_PORT: u16 = 443;
/// Maximum time until the agent knows which rungs were answered.
const SETTLED: Duration = Duration::from_secs(1);
/// Payload of the probe to a UDP service. No service should take it for a request.
const PROBE: &[u8] = b"vouchsafe ping";

/// Show step by step what happens to a first packet
#[derive(Args, Debug)]
pub struct PingArguments {
    #[command(flatten)]
    pub(super) at: At,
    /// HOST, HOST:PORT or [ADDRESS]:PORT [default port: the receiver's first, else 443]
    target: String,
    /// Send a UDP datagram instead of connecting by TCP; a service may not answer it
    #[arg(long)]
    udp: bool,
    /// Also test whether a middlebox answers in the server's place; takes half a second
    #[arg(long, conflicts_with = "udp")]
    path: bool,
    /// Time to wait for an answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait: u64,
    /// Print the steps as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome of the first packet.
enum Answer {
    Yes,
    Refused,
    Silence,
    Failed(std::io::Error),
}

/// Prints the steps as they happen, or collects them.
struct Steps {
    number: u32,
    since: Instant,
    /// The steps for output as JSON.
    collected: Option<Vec<Value>>,
    rungs: Vec<Rung>,
}

impl Steps {
    fn print(&mut self, name: &str, text: &str) {
        self.number += 1;
        let millis = self.since.elapsed().as_secs_f64() * 1000.0;
        match &mut self.collected {
            Some(steps) => steps.push(json!({ "name": name, "millis": millis, "text": text })),
            None => println!("{} {name:<12} {:>8.1} ms  {}", self.number, millis, text.replace(char::is_control, "?")),
        }
        self.since = Instant::now();
    }
}

pub async fn run(arguments: PingArguments) -> Result<ExitCode> {
    let collected = arguments.json.then(Vec::new);
    let mut steps = Steps { number: 0, since: Instant::now(), collected, rungs: Vec::new() };
    let target = arguments.target.clone();
    let code = follow(&mut steps, arguments).await?;
    if let Some(collected) = steps.collected {
        let answered = code == ExitCode::SUCCESS;
        println!("{}", json!({ "target": target, "answered": answered, "steps": collected, "rungs": steps.rungs }));
    }
    Ok(code)
}

async fn follow(steps: &mut Steps, arguments: PingArguments) -> Result<ExitCode> {
    let protocol = if arguments.udp { UDP } else { TCP };
    let (host, port) = split(&arguments.target)?;
    let found = tokio::net::lookup_host((host, port.unwrap_or(0))).await.map(|mut all| all.next());
    let Some(address) = found.ok().flatten().map(|address| address.ip().to_canonical()) else {
        steps.print("name", &format!("{host} has no address"));
        return Ok(ExitCode::FAILURE);
    };
    steps.print("name", &format!("{host} is {address}"));

    let (sessions, own) = match arguments.at.call(Call::Status).await? {
        Reply::Status(status) => {
            (status.sessions().map(|(_, session)| session.clone()).collect::<Vec<_>>(), status.own)
        }
        other => return unexpected(other),
    };
    let port = port.or_else(|| usual_port(&sessions, address, protocol)).unwrap_or(DEFAULT_PORT);
    let to = SocketAddr::new(address, port);
    let is_of = |receiver: &&Receiver| {
        receiver.prefix.contains(&address) && receiver.services.iter().any(|service| service.covers(protocol, port))
    };
    let session = sessions.iter().find(|session| session.destinations.iter().any(|receiver| is_of(&receiver)));
    let Some(session) = session.or(sessions.first()) else {
        steps.print(
            "destination",
            "nobody is logged in, so it is unknown which destinations are protected: run `vouchsafe login`",
        );
        return answer(steps, to, &arguments, false).await;
    };
    let receiver = session.destinations.iter().find(is_of);
    let what = service(protocol, port, port);
    match receiver {
        Some(receiver) => steps.print("destination", &format!("{what} is protected: receiver {}", receiver.name)),
        None => {
            steps.print(
                "destination",
                &format!(
                    "no receiver that {} may reach includes {what}: the packet is sent without a token",
                    session.person
                ),
            );
            if let Some(command) = way_to_ask(&arguments.at, address, protocol, port).await {
                steps.print("access", &format!("you can ask for it: {command}"));
            }
            return answer(steps, to, &arguments, false).await;
        }
    }
    let standing = match arguments.at.call(Call::Explain { address, protocol, port }).await? {
        Reply::Standing(standing) => standing,
        other => return unexpected(other),
    };
    if let Standing::Withheld { rule } = &standing {
        let by = rule.map_or("the default".to_owned(), |rule| format!("your rule for {rule}"));
        steps.print("consent", &format!("no: {by} is deny (see `vouchsafe grants list`)"));
        return answer(steps, to, &arguments, false).await;
    }
    steps.print("consent", "yes: your identity may go there");
    match standing {
        Standing::Granted { asked, grant, now } => {
            print_grant(steps, &grant, asked, now, own.is_some() && !arguments.udp);
            match own {
                Some(dir) => answer_to_own(steps, to, &arguments, dir).await,
                None => {
                    let code = answer(steps, to, &arguments, true).await?;
                    if !arguments.udp {
                        print_rungs(steps, &arguments.at, to).await?;
                        // On another rung, no box on the way sees a SYN that it could answer.
                        let is_direct = steps.rungs.first().is_none_or(|rung| rung.state != RungState::Blocked);
                        if arguments.path && code == ExitCode::SUCCESS && is_direct {
                            print_impostor(steps, to).await?;
                        }
                    }
                    Ok(code)
                }
            }
        }
        Standing::Denied { why } => {
            steps.print("grant", &format!("denied: {why}"));
            Ok(ExitCode::FAILURE)
        }
        Standing::Failed { why } => {
            steps.print("grant", &format!("none: {why}"));
            Ok(ExitCode::FAILURE)
        }
        Standing::NotProtected | Standing::Withheld { .. } => answer(steps, to, &arguments, false).await,
    }
}

fn print_grant(steps: &mut Steps, grant: &Grant, asked: bool, now: u64, in_stream: bool) {
    let from = if asked { "new" } else { "existing" };
    let scope = match (grant.protocol, grant.port) {
        (Some(protocol), Some(port)) => service(protocol, port, port),
        _ => "all".to_owned(),
    };
    let rule = if grant.rule.is_empty() { String::new() } else { format!(", by {}", grant.rule) };
    let lasts = left(grant.expires.into(), now);
    steps.print("grant", &format!("{from}: {} {scope}{rule}, for {lasts}", grant.prefix));
    let handle = grant.handle.get(..8).unwrap_or(&grant.handle);
    let carrier = if in_stream { Carrier::Stream.name() } else { &grant.carrier };
    steps.print("token", &format!("{} by {carrier}, handle {handle}…", grant.suite));
}

/// Shows whether something other than the server answers. The agent can't see this in an answer to a token.
async fn print_impostor(steps: &mut Steps, to: SocketAddr) -> Result<()> {
    match tokio::task::spawn_blocking(move || reach::stream::answers_without_verifier(to)).await? {
        Ok(true) => steps.print(
            "path",
            "a SYN that every verifier drops was answered: a middlebox answers in the server's place (a transparent proxy \
             or a SYN proxy), or no verifier protects the server. A middlebox gets the data that you send, and the \
             server does not: try another network",
        ),
        Ok(false) => {}
        Err(error) => tracing::debug!("cannot test whether a middlebox answers in the server's place: {error}"),
    }
    Ok(())
}

/// Shows by which rungs of the ladder first packets have arrived.
async fn print_rungs(steps: &mut Steps, at: &At, to: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + SETTLED;
    let call = || Call::Rungs { address: to.ip(), protocol: TCP, port: to.port() };
    loop {
        steps.rungs = match at.call(call()).await? {
            Reply::Rungs { rungs } => rungs,
            other => return unexpected(other).map(drop),
        };
        let is_known = |rung: &Rung| rung.state != RungState::NotTried;
        if steps.rungs.len() < 2 || steps.rungs.first().is_some_and(is_known) || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for rung in steps.rungs.clone() {
        let state = match (rung.state, rung.begins_again) {
            (RungState::Works, _) => "works".to_owned(),
            (RungState::Blocked, None | Some(0)) => "blocked".to_owned(),
            (RungState::Blocked, Some(seconds)) => {
                format!("blocked: connections do not begin with this rung for the next {}", left(seconds, 0))
            }
            (RungState::NotTried, _) => "not tried".to_owned(),
        };
        steps.print("rung", &format!("{}: {state}", rung.name));
    }
    Ok(())
}

/// Sends the first packet as the calling user, and waits for the answer.
async fn answer(steps: &mut Steps, to: SocketAddr, arguments: &PingArguments, token: bool) -> Result<ExitCode> {
    let wait = Duration::from_secs(arguments.wait);
    let outcome = if arguments.udp { udp(to, wait).await } else { tcp(to, wait).await };
    let text = match &outcome {
        Answer::Yes if arguments.udp => "answered".to_owned(),
        Answer::Yes => "connected".to_owned(),
        Answer::Refused => "refused: the packet arrived, but nothing listens on the port".to_owned(),
        Answer::Silence => format!("no answer within {} s; likely: {}", arguments.wait, cause(arguments.udp, token)),
        Answer::Failed(error) => format!("cannot send the packet: {error}"),
    };
    steps.print("answer", &text);
    Ok(if matches!(outcome, Answer::Yes) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends the first packet from this process, with a token of the user's own session.
async fn answer_to_own(steps: &mut Steps, to: SocketAddr, arguments: &PingArguments, dir: PathBuf) -> Result<ExitCode> {
    let (wait, udp) = (Duration::from_secs(arguments.wait), arguments.udp);
    let sent = tokio::task::spawn_blocking(move || {
        let session = Session::open(&Places { socket: None, dir })?;
        session.consent();
        if !udp {
            return session.connect_to(to, Timeouts { connect: wait }).map(drop);
        }
        let flow = session.datagrams(to)?;
        let timeout = flow.socket().set_read_timeout(Some(wait));
        timeout.map_err(|source| reach::Error::Io { to, source })?;
        flow.send(PROBE)?;
        flow.receive(&mut [0; 2048]).map(drop)
    });
    let outcome = sent.await?;
    let text = match &outcome {
        Ok(()) if udp => "answered".to_owned(),
        Ok(()) => "connected".to_owned(),
        Err(reach::Error::Io { source, .. }) if source.kind() == ErrorKind::ConnectionRefused => {
            "refused: the packet arrived, but nothing listens on the port".to_owned()
        }
        Err(reach::Error::Io { source, .. }) if udp && source.kind() == ErrorKind::WouldBlock => {
            format!("no answer within {} s; likely: {}", arguments.wait, cause(true, true))
        }
        Err(error) => error.to_string(),
    };
    steps.print("answer", &text);
    Ok(if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const fn cause(udp: bool, token: bool) -> &'static str {
    match (udp, token) {
        (true, true) => "the service does not answer this datagram, or the verifier dropped it",
        (false, true) => {
            "the host is down, or the verifier dropped the packet (`vouchsafe verifier drops` there says why), or a \
             device on the path drops SYNs with data"
        }
        (_, false) => "the destination is protected and the packet carried no token, or the host is down",
    }
}

async fn tcp(to: SocketAddr, wait: Duration) -> Answer {
    match timeout(wait, TcpStream::connect(to)).await {
        Ok(Ok(_)) => Answer::Yes,
        Ok(Err(error)) => failed(error),
        Err(_) => Answer::Silence,
    }
}

async fn udp(to: SocketAddr, wait: Duration) -> Answer {
    let exchange = async {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(to).await?;
        socket.send(PROBE).await?;
        socket.recv(&mut [0; 2048]).await
    };
    match timeout(wait, exchange).await {
        Ok(Ok(_)) => Answer::Yes,
        Ok(Err(error)) => failed(error),
        Err(_) => Answer::Silence,
    }
}

fn failed(error: std::io::Error) -> Answer {
    match error.kind() {
        ErrorKind::ConnectionRefused => Answer::Refused,
        ErrorKind::TimedOut => Answer::Silence,
        _ => Answer::Failed(error),
    }
}

/// Returns the first port of the person's receiver at this address, if there is one.
fn usual_port(sessions: &[protocol::Session], address: IpAddr, protocol: u8) -> Option<u16> {
    let all = sessions.iter().flat_map(|session| &session.destinations);
    let at = all.filter(|receiver| receiver.prefix.contains(&address));
    let mut services = at.flat_map(|receiver| &receiver.services);
    services.find(|service| service.protocol == protocol && service.first_port > 0).map(|service| service.first_port)
}

fn split(target: &str) -> Result<(&str, Option<u16>)> {
    let bare = target.strip_prefix('[').and_then(|target| target.strip_suffix(']')).unwrap_or(target);
    if bare.parse::<IpAddr>().is_ok() {
        return Ok((bare, None));
    }
    let Some((host, port)) = target.rsplit_once(':') else { return Ok((target, None)) };
    let port =
        port.parse().ok().with_context(|| format!("{target:?} has no valid port at its end: write HOST or HOST:22"))?;
    Ok((host.trim_start_matches('[').trim_end_matches(']'), Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split() {
        assert_eq!(split("git.example.org").unwrap(), ("git.example.org", None));
        assert_eq!(split("git.example.org:22").unwrap(), ("git.example.org", Some(22)));
        assert_eq!(split("2001:db8::1").unwrap(), ("2001:db8::1", None));
        assert_eq!(split("[2001:db8::1]").unwrap(), ("2001:db8::1", None));
        assert_eq!(split("[2001:db8::1]:22").unwrap(), ("2001:db8::1", Some(22)));
        assert!(split("host:ssh").is_err());
    }
}
