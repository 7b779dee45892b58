//! The commands of users and their answers: state, grants and rules.

use super::login::At;
use super::organisations::LoginScope;
use super::{Daemon, Waiter, used};
use crate::control::Command;
use crate::metrics::Snapshot;
use crate::now;
use crate::switches::Switches;
use anyhow::{Context, Result};
use engine::agent::consent::RULES_MAX;
use engine::agent::{self, Subject};
use engine::model::Target;
use reach::login::refused;
use reach::organisation::OrganisationName;
use reach::protocol::{AccessCall, Call, Grant, Interface, Reply, Session, Standing, Status};

use std::collections::BTreeMap;
use tokio::sync::oneshot;
use wire::Destination;

impl Daemon {
    pub(super) fn command(&mut self, command: Command) {
        let Command { uid, organisation, networks, call, reply } = command;
        let subject = Subject::of_user(uid);
        let scope = LoginScope { uid, organisation, networks };
        let answer = match call {
            Call::Login { authority: url, ca, person, password, totp, device } => {
                let login = api::Login { person, password, totp, device };
                return self.login(At { url, ca, scope }, login, reply);
            }
            Call::LoginMethods { authority: url, ca } => return self.login_methods(At { url, ca, scope }, reply),
            Call::StartLogin { authority: url, ca, device, way } => {
                return self.start_login(At { url, ca, scope }, device, way, reply);
            }
            Call::FinishLogin { callback } => return self.finish_login(uid, callback, reply),
            Call::ServiceLogin { authority: url, ca, key, device } => {
                return self.service_login(At { url, ca, scope }, key, device, reply);
            }
            Call::Logout { forget } => return self.logout(&scope, forget, reply),
            Call::Explain { address, protocol, port } => {
                let to = Destination { address: address.to_canonical(), protocol, port };
                return self.explain(subject, to, false, reply);
            }
            Call::Rungs { address, protocol, port } => {
                let to = Destination { address: address.to_canonical(), protocol, port };
                Reply::Rungs { rungs: self.rungs(subject, to) }
            }
            Call::Access(call) => return self.access(subject, call, reply),
            Call::Discover { domain } => return self.discover(domain.as_deref(), reply),
            Call::Status => self.status(uid),
            Call::Grants => Reply::Grants {
                grants: self.grants(uid),
                rules: self.agent.rules(subject).all().to_vec(),
                default: self.settings.agent.default,
                now: self.agent.unix(now(), subject),
            },
            Call::Rule { target, consent } => self.rule(uid, target, consent),
            Call::Treat { process, treatment } => self.treat(uid, process, &treatment),
        };
        let _ = reply.send(answer);
    }

    /// Passes a call about requests for access on to the user's authority.
    fn access(&self, subject: Subject, call: AccessCall, reply: oneshot::Sender<Reply>) {
        let Some(connection) = self.connections.get(&subject) else {
            drop(reply.send(refused("not_logged_in", "nobody is logged in: run `vouchsafe login`".to_owned())));
            return;
        };
        let authority = connection.authority.clone();
        tokio::spawn(async move {
            let _ = reply.send(reach::access::call(&authority, call).await);
        });
    }

    /// Returns a user's grants of all organisations. Their times are by the clock of the default organisation's authority.
    fn grants(&self, uid: u32) -> Vec<Grant> {
        let own = Subject::of_user(uid);
        let Some(kept) = self.kept.get(&uid) else { return Vec::new() };
        let of_organisation = |(number, name, _): (u16, Option<&OrganisationName>, _)| {
            let subject = own.in_organisation(number);
            let ahead = self.agent.unix(now(), own) as i64 - self.agent.unix(now(), subject) as i64;
            let shifted = |time: u32| (i64::from(time) + ahead).clamp(0, u32::MAX.into()) as u32;
            let views = self.agent.grants(subject, |slot| used(&self.kernel, self.switches.as_ref(), slot));
            let grant = move |view: &agent::GrantView| {
                let (expires, used) = (shifted(view.expires), if view.used == 0 { 0 } else { shifted(view.used) });
                Grant { expires, used, organisation: name.cloned(), ..Grant::from(view) }
            };
            views.iter().map(grant).collect::<Vec<_>>()
        };
        kept.all().flat_map(of_organisation).collect()
    }

    fn rule(&mut self, uid: u32, target: Target, consent: Option<agent::Consent>) -> Reply {
        let kept = self.kept.entry(uid).or_default();
        let text = match consent {
            Some(_) if !kept.rules.have_room_for(&target) => {
                let text =
                    format!("you have {RULES_MAX} rules already: forget one, or name a network instead of hosts");
                return refused("too_many_rules", text);
            }
            Some(consent) => {
                kept.rules.set(target, consent);
                format!("{}: {target}", consent.name())
            }
            None if kept.rules.forget(&target) => format!("removed the rule for {target}"),
            None => return refused("no_rule", format!("no rule for {target}")),
        };
        self.agent.set_rules(Subject::of_user(uid), kept.rules.clone());
        self.save(uid);
        Reply::Done { text }
    }

    pub(super) fn explain(&mut self, subject: Subject, to: Destination, asked: bool, reply: oneshot::Sender<Reply>) {
        // The client may have closed its connection; then its answer is not needed.
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        let standing = match self.agent.want(now(), subject, to) {
            agent::Standing::Requested(fetch) => {
                return self.waiters.push(Waiter { fetch, subject, place: to, since: now(), reply });
            }
            agent::Standing::NotLoggedIn => {
                let _ = reply.send(refused("not_logged_in", "nobody is logged in: run `vouchsafe login`".to_owned()));
                return;
            }
            agent::Standing::NotProtected => Standing::NotProtected,
            agent::Standing::Withheld(rule) => Standing::Withheld { rule },
            agent::Standing::Denied(why) => Standing::Denied { why },
            agent::Standing::Granted(view) => {
                let holder = self.agent.holder(&subject.slot(&to)).unwrap_or(subject);
                Standing::Granted { asked, grant: Grant::from(&*view), now: self.agent.unix(now(), holder) }
            }
            agent::Standing::Missing => Standing::Failed {
                why: "too many of your requests to the authority are still unanswered: try again later".to_owned(),
            },
        };
        let _ = reply.send(Reply::Standing(standing));
    }

    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let switches = self.switches.iter().flat_map(Switches::shown);
        self.kernel.interfaces().into_iter().chain(switches).chain(self.broken_tunnels()).collect()
    }

    /// Returns the counters of the kernel program, of the switches and of the sealed tunnels, by name.
    pub(super) fn counters(&self) -> Result<BTreeMap<String, u64>> {
        let mut counters = self.kernel.counters().context("cannot read the kernel's counters")?;
        for (name, count) in self.switches.iter().flat_map(Switches::counters) {
            *counters.entry(name.to_owned()).or_default() += count;
        }
        counters.extend(self.tunnel_counters());
        Ok(counters)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let reachable = self.connections.values().filter(|connection| connection.trouble.is_none()).count();
        let interfaces = self.interfaces();
        let attached = interfaces.iter().filter(|interface| interface.trouble.is_none()).count();
        Ok(Snapshot {
            counters: self.counters()?,
            answers: self.answers,
            grants: self.connections.keys().map(|subject| self.agent.grants(*subject, |_| None).len()).sum(),
            reachable,
            unreachable: self.connections.len() - reachable,
            attached,
            failing: interfaces.len() - attached,
        })
    }

    /// Returns the session of a subject as the agent displays it.
    pub(super) fn shown_session(&self, subject: Subject) -> Option<Session> {
        let kept = self.kept_session(subject);
        let connection = self.connections.get(&subject);
        let members = connection.map(|connection| connection.authority.members()).unwrap_or_default();
        let (in_use, authorities) = members.shown();
        kept.map(|session| Session {
            person: session.person.clone(),
            device: session.device.clone(),
            authority: session.authority.clone(),
            in_use,
            authorities,
            trouble: connection.and_then(|connection| connection.trouble.clone()),
            expires: session.expires,
            grants_by: connection.map(|connection| connection.ways).unwrap_or_default(),
            destinations: self.agent.receivers(subject).to_vec(),
        })
    }

    fn status(&self, uid: u32) -> Reply {
        let subject = Subject::of_user(uid);
        let organisations = self.organisations(uid);
        let session = organisations.first().and_then(|default| default.session.clone());
        match self.counters() {
            Err(error) => refused("broken", format!("{error:#}")),
            Ok(counters) => Reply::Status(Box::new(Status {
                uid,
                session,
                organisations,
                interfaces: self.interfaces(),
                counters,
                default: self.settings.agent.default,
                discovered: self.discovered(),
                now: self.agent.unix(now(), subject),
                own: None,
                tunnels: self.tunnels_of(subject),
                tunnel_queues: self.tunnel_queues(),
            })),
        }
    }
}
