//! Mallory, a person with an account, does everything that one account can do, as fast as possible.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result};
use api::{Grant, GrantRequest, Login};
use client::{Authority, Error};
use lab::forge::protocol::{TCP, UDP};
use lab::forge::{Packet, Tcp, flag};
use lab::mint::now;
use lab::world::{self, DARK4, ECHO, FRONT4, Network, PASSWORD};
use lab::{Namespace, Port};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use wire::{Destination, GrantHeader, GrantKey, Token, tail};

/// Name of Mallory's account.
pub const NAME: &str = "mallory";
/// Address of Mallory's machine.
const ADDRESS: &str = "10.2.0.1";
/// Number of concurrent sessions that request grants and end.
const SESSIONS: usize = 4;
/// Number of concurrent requests per session, the authority's limit per connection.
const AT_ONCE: usize = 32;
/// Number of requests per session, the authority's limit of grants per session.
const OF_SESSION: usize = 1024;
/// Number of grants with which Mallory makes tokens for her packets.
const ARMS: usize = 512;
/// Number of sessions in which Mallory fetches them: within a session, repeated requests get the same grant.
const LOGINS: usize = 16;

/// Counters of Mallory's actions.
#[derive(Debug, Default)]
pub struct Deeds {
    /// Grants that the authority issued to her.
    pub granted: AtomicU64,
    /// Grants that the authority refused.
    pub refused: AtomicU64,
    /// Sessions that she began and ended.
    pub sessions: AtomicU64,
    /// Sessions that the authority refused.
    pub shut_out: AtomicU64,
    /// Packets with a new token that she sent.
    pub tokens: AtomicU64,
}

/// Mallory, with the grants that she uses in the attack.
pub struct Mallory<'n> {
    network: &'n Network,
    url: String,
    ca: Vec<u8>,
    arms: Vec<Arm>,
}

/// A grant, with its key.
struct Arm {
    header: GrantHeader,
    key: GrantKey,
    to: Destination,
}

impl<'n> Mallory<'n> {
    /// Logs in, and fetches the grants for the packets: for TCP at the addresses of `hosts`, and for UDP.
    pub fn new(network: &'n Network, authority: &world::Authority, hosts: &[IpAddr]) -> Result<Self> {
        ignore_answers(&network.mallory)?;
        let ca = std::fs::read(authority.ca()).context("the authority's certificate")?;
        let mut this = Self { network, url: authority.url(), ca, arms: Vec::new() };
        let dark = Destination { address: DARK4.parse()?, protocol: UDP, port: ECHO };
        let tcp = hosts.iter().map(|address| Destination { address: *address, protocol: TCP, port: ECHO });
        let aims: Vec<_> = tcp.flat_map(|tcp| [tcp, dark]).cycle().take(ARMS).collect();
        this.arms = this.block_on(async |this| {
            let mut arms = Vec::new();
            for aims in aims.chunks(ARMS / LOGINS) {
                let session = this.log_in().await.context("mallory can't log in")?;
                for to in aims {
                    arms.push(Arm::new(&session.grant(&request(to)).await.context("mallory gets no grant")?, *to)?);
                }
            }
            Ok(arms)
        })?;
        Ok(this)
    }

    /// Runs `work` while Mallory attacks, and returns its result.
    pub fn during<T>(&self, work: impl FnOnce(&Deeds) -> Result<T>) -> Result<T> {
        let (end, deeds) = (AtomicBool::new(false), Deeds::default());
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(&deeds, &end));
            let asker = scope.spawn(|| self.block_on(async |this| this.ask(&deeds, &end).await));
            let ends = Ends(&end);
            let done = work(&deeds);
            drop(ends);
            for thread in [sender, asker] {
                thread.join().ok().context("a thread of mallory's panicked")?.context("mallory")?;
            }
            done
        })
    }

    /// Repeatedly begins sessions, requests all the grants that each may have, and ends them.
    async fn ask(&self, deeds: &Deeds, end: &AtomicBool) -> Result<()> {
        let sessions = (0..SESSIONS).map(|_| async {
            while !end.load(Relaxed) {
                match self.log_in().await {
                    Ok(session) => {
                        fetch(&session, deeds, end).await?;
                        session.logout().await.context("mallory can't log out")?;
                        deeds.sessions.fetch_add(1, Relaxed);
                    }
                    Err(Error::Refused(_)) => drop(deeds.shut_out.fetch_add(1, Relaxed)),
                    Err(error) => return Err(error).context("mallory can't log in"),
                }
            }
            anyhow::Ok(())
        });
        futures_util::future::try_join_all(sessions).await.map(drop)
    }

    async fn log_in(&self) -> Result<Authority, Error> {
        let authority = Authority::new(&self.url, Some(&self.ca))?;
        let login = Login { person: NAME.into(), password: PASSWORD.into(), totp: None, device: "laptop".into() };
        let session = authority.login(&login).await?;
        Ok(authority.with_token(&session.token))
    }

    /// Sends first packets with valid tokens from all of Mallory's ports in turn: SYNs, ACKs that acknowledge nothing,
    /// and datagrams.
    fn send(&self, deeds: &Deeds, end: &AtomicBool) -> Result<()> {
        let source: IpAddr = ADDRESS.parse()?;
        let port = Port::open(&self.network.mallory, "eth0")?;
        let (from, at) = (self.network.mallory.mac("eth0")?, self.network.router.mac("lan-mallory")?);
        for (nonce, arm) in (1_u32..).zip(self.arms.iter().cycle()) {
            if end.load(Relaxed) {
                break;
            }
            let own = 1024 + (nonce % 64_000) as u16;
            let token = Token::new(arm.header, &arm.key, now(), nonce, &arm.to);
            let block = tail::block(&token.encode());
            let packet = Packet::new(source, arm.to.address).ethernet(from, at);
            if arm.to.protocol == UDP {
                let datagram = [b"anybody there?", &block[..]].concat();
                port.send(&packet.udp(own, arm.to.port).payload(&datagram).frame())?;
            } else {
                let syn = packet.clone().tcp(Tcp::syn(own, arm.to.port)).payload(&block);
                port.send(&syn.frame())?;
                port.send(&packet.tcp(Tcp::new(own, arm.to.port, flag::ACK)).frame())?;
            }
            deeds.tokens.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Runs a future on a thread in Mallory's namespace, to which its sockets then belong.
    fn block_on<T: Send>(&self, work: impl AsyncFnOnce(&Self) -> Result<T> + Send) -> Result<T> {
        self.network.mallory.enter(|| {
            let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
            runtime.block_on(work(self))
        })
    }
}

/// A guard that tells the threads to end when it is dropped, even if the work panics.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Arm {
    fn new(grant: &Grant, to: Destination) -> Result<Self> {
        let (mut header, mut key) = ([0; 16], [0; 16]);
        hex::decode_to_slice(&grant.header, &mut header).context("a grant's header")?;
        hex::decode_to_slice(&grant.key, &mut key).context("a grant's key")?;
        let header = GrantHeader::decode(&header).ok().context("a grant's header")?;
        Ok(Self { header, key: GrantKey::new(key), to })
    }
}

/// Requests as many grants as a session may have, many of them concurrently.
async fn fetch(session: &Authority, deeds: &Deeds, end: &AtomicBool) -> Result<()> {
    let to = request(&Destination { address: FRONT4.parse()?, protocol: TCP, port: ECHO });
    let (mut asked, mut left) = (JoinSet::new(), OF_SESSION);
    while left > 0 || !asked.is_empty() {
        while left > 0 && asked.len() < AT_ONCE {
            let (session, to) = (session.clone(), to.clone());
            asked.spawn(async move { session.grant(&to).await });
            left -= 1;
        }
        match asked.join_next().await.context("requests are under way")?? {
            Ok(_) => deeds.granted.fetch_add(1, Relaxed),
            Err(Error::Refused(_)) => deeds.refused.fetch_add(1, Relaxed),
            Err(error) => return Err(error).context("mallory asks for a grant"),
        };
        if end.load(Relaxed) {
            left = 0;
        }
    }
    Ok(())
}

fn request(to: &Destination) -> GrantRequest {
    let Destination { address, protocol, port } = *to;
    GrantRequest { address, protocol, port, consented: false, in_band: false }
}

/// Keeps Mallory's network stack from answering the servers with resets, which would end her flows.
fn ignore_answers(namespace: &Namespace) -> Result<()> {
    let rules = format!(
        "table inet mute {{
            chain input {{
                type filter hook input priority filter; policy accept;
                meta l4proto {{ tcp, udp }} th sport {ECHO} drop
            }}
        }}"
    );
    let file = namespace.dir().join("mute.nft");
    std::fs::write(&file, rules).with_context(|| file.display().to_string())?;
    namespace.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()]).map(drop)
}
