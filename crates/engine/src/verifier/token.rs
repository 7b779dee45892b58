//! The checks of a token, and the flow that it admits (wire.md §6.4).

use super::CLOCK_SKEW_MAX;
use super::connection::begin;
use super::decide::Decision;
use super::flow::{Relation, count, is_proved, relation};
use super::observer::Observer;
use super::tables::{Once, Replay, TablesMut};
use wire::map::{AccountUse, Flow, FlowKey, GrantUse, TOKEN_WINDOW, TOKENS_PER_FLOW};
use wire::packet::{Packet, TCP};
use wire::token::TOKEN_LEN;
use wire::{
    ClientKey, Destination, DropReason, Epoch, Flags, Handle, Holder, LsToken, ServerSecret, Token, VerifierKey, ls,
};

/// The grant that a token proves, and the part of the token that is valid only once.
pub(super) struct Claim {
    handle: Handle,
    holder: Holder,
    expires: u32,
    single: bool,
    once: Once,
}

impl Claim {
    /// Returns the claim that a token makes to the verifier with this key.
    fn of(token: &Token, key: &VerifierKey) -> Self {
        let header = &token.header;
        let (holder, single) = (Holder::of(header.handle, key), header.flags.has(Flags::SINGLE));
        Self { handle: header.handle, holder, expires: header.expires, single, once: Once::Token(token.encode()) }
    }
}

impl<T: TablesMut, O: Observer> Decision<'_, T, O> {
    /// Checks a token in the order of wire.md §6.4, up to and including the check for revocation.
    pub(super) fn token(&mut self, bytes: &[u8; TOKEN_LEN], packet: &Packet) -> Result<Claim, DropReason> {
        let now = self.now;
        let decoded = Token::decode(bytes, packet.ipv6());
        let name = if decoded == Err(DropReason::UnknownSuite) { "suite" } else { "form" };
        self.note(name, decoded.is_ok(), || match &decoded {
            Ok(token) => format!("a token of grant {}", token.header.handle),
            Err(reason) => reason.name().into(),
        });
        let token = decoded?;
        let header = &token.header;
        let speaks = self.tables.config().speaks(header.suite as u8);
        self.require("suite", speaks, DropReason::UnknownSuite, || {
            format!("{}{}", header.suite.name(), if speaks { "" } else { ", which this verifier does not accept" })
        })?;
        let current = Epoch::at(now.into(), self.tables.config().epoch_length.max(1));
        let key = current.from_wire(header.epoch).and_then(|epoch| self.tables.key(epoch));
        self.note("epoch", key.is_some(), || match current.from_wire(header.epoch) {
            Some(epoch) if key.is_some() => format!("epoch {}; the current one is {}", epoch.0, current.0),
            Some(epoch) => format!("this verifier has no key of epoch {}", epoch.0),
            None => format!(
                "the low bits of the token's epoch are {}, which match no epoch near {}",
                header.epoch, current.0
            ),
        });
        let key = key.ok_or(DropReason::UnknownEpoch)?;
        self.expiry("grant", header.expires)?;
        let most = self.tables.config().max_lifetime;
        let left = header.expires - now;
        self.require("lifetime", left <= most, DropReason::LifetimeTooLong, || {
            format!("the grant ends in {left} s; the maximum is {most} s")
        })?;
        let time = token.time;
        self.require("clock", time.abs_diff(now) <= CLOCK_SKEW_MAX, DropReason::ClockSkew, || {
            let age = i64::from(now) - i64::from(time);
            format!(
                "by this verifier's clock, the token's age is {age} s; it must be from -{CLOCK_SKEW_MAX} to \
                 {CLOCK_SKEW_MAX} s"
            )
        })?;
        self.remembered(time, DropReason::ClockSkew, "the token was used")?;
        let (Some(source), Some(address)) = (packet.source, packet.destination) else {
            return Err(DropReason::Malformed);
        };
        let to = Destination { address, protocol: packet.protocol, port: packet.destination_port };
        let right = token.proves(&header.key(&key, &to, source), &to);
        self.require("tag", right, DropReason::BadTag, || {
            let text = if right { "right" } else { "wrong: forged, changed, or for another destination" };
            let bound = if header.flags.has(Flags::SOURCE) { "; it is bound to the sender's address" } else { "" };
            format!("{text}{bound}")
        })?;
        let fits = self.tables.in_tunnel() || !header.flags.has(Flags::SEALED);
        self.require("treatment", fits, DropReason::Unsealed, || match fits {
            true => "the grant does not require a sealed tunnel, or the packet came out of one".into(),
            false => "the grant is valid inside a sealed tunnel only, and this packet came outside of one".into(),
        })?;
        let claim = Claim::of(&token, &key);
        self.unrevoked(&claim)?;
        Ok(claim)
    }

    /// Checks a token of the scheme of LS in the order of wire.md §6.4.1, up to and including the check for revocation.
    pub(super) fn ls_token(&mut self, token: &LsToken) -> Result<Claim, DropReason> {
        let speaks = self.tables.config().speaks(ls::SUITE);
        self.require("suite", speaks, DropReason::UnknownSuite, || {
            format!("{}{}", ls::NAME, if speaks { "" } else { ", which this verifier does not accept" })
        })?;
        let handle = token.pair.handle();
        let pair = self.tables.pair(handle);
        if pair.is_none() && self.tables.config().ls_stateless != 0 {
            return self.unannounced(token);
        }
        self.note("pair", pair.is_some(), || {
            format!("{handle}, which the authority has {}", if pair.is_some() { "announced" } else { "not announced" })
        });
        let pair = pair.ok_or(DropReason::UnknownEpoch)?;
        let secret = self.tables.key(pair.epoch).and_then(|key| ServerSecret::of(&key));
        self.note("epoch", secret.is_some(), || match secret {
            Some(_) => format!("epoch {}", pair.epoch.0),
            None => format!("this verifier has no key of epoch {}", pair.epoch.0),
        });
        let secret = secret.ok_or(DropReason::UnknownEpoch)?;
        self.expiry("pair", pair.expires)?;
        let right = token.proves(&ClientKey::of(token.pair, secret.bytes()));
        self.require("tag", right, DropReason::BadTag, || {
            if right { "right".into() } else { "wrong: forged or changed".into() }
        })?;
        let once = Once::Nonce2(handle, token.nonce2);
        let claim = Claim { handle, holder: pair.holder, expires: pair.expires, single: false, once };
        self.unrevoked(&claim)?;
        Ok(claim)
    }

    /// Checks a token whose pair was not announced to this verifier, as the published scheme does (wire.md §6.4.7).
    fn unannounced(&mut self, token: &LsToken) -> Result<Claim, DropReason> {
        let length = self.tables.config().epoch_length.max(1);
        let Epoch(current) = Epoch::at(self.now.into(), length);
        let secrets = [current, current.wrapping_sub(1), current.wrapping_add(1)].map(|epoch| {
            let key = self.tables.key(Epoch(epoch));
            key.and_then(|key| ServerSecret::of(&key)).map(|secret| (epoch, secret))
        });
        let known = secrets.iter().flatten().count() > 0;
        self.require("epoch", known, DropReason::UnknownEpoch, || match known {
            true => "the pair was not announced; this verifier tries its current secrets".into(),
            false => "this verifier has no keys".into(),
        })?;
        let right = |(_, secret): &&(u64, ServerSecret)| token.proves(&ClientKey::of(token.pair, secret.bytes()));
        let epoch = secrets.iter().flatten().find(right).map(|(epoch, _)| *epoch);
        self.require("tag", epoch.is_some(), DropReason::BadTag, || match epoch {
            Some(epoch) => format!("right, with the secret of epoch {epoch}"),
            None => "wrong: forged, changed, or of an epoch that is over".into(),
        })?;
        let expires = (epoch.unwrap_or_default().wrapping_add(2)).wrapping_mul(length.into()) as u32;
        self.remembered(expires, DropReason::Expired, "the pair was revoked")?;
        let (handle, once) = (token.pair.handle(), Once::Nothing);
        let claim = Claim { handle, holder: Holder::default(), expires, single: false, once };
        self.unrevoked(&claim)?;
        Ok(claim)
    }

    fn expiry(&mut self, what: &str, expires: u32) -> Result<(), DropReason> {
        let now = self.now;
        self.require("expiry", expires > now, DropReason::Expired, || {
            format!("seconds until the {what} expires: {}", i64::from(expires) - i64::from(now))
        })?;
        self.remembered(expires, DropReason::Expired, "the grant or pair was revoked")
    }

    /// Drops the packet if the verifier may have forgotten tokens and grants of this time (wire.md §6.4.6).
    fn remembered(&mut self, time: u32, reason: DropReason, what: &str) -> Result<(), DropReason> {
        if !self.tables.has_forgotten(time) {
            return Ok(());
        }
        self.require("memory", false, reason, || {
            format!("this verifier's clock was set back, so the verifier no longer knows whether {what} before")
        })
    }

    fn unrevoked(&mut self, claim: &Claim) -> Result<(), DropReason> {
        let Claim { handle, holder, .. } = *claim;
        let revoked = self.tables.is_revoked(handle);
        self.require("revoked", !revoked, DropReason::Revoked, || {
            format!("{handle} is {}", if revoked { "revoked" } else { "not revoked" })
        })?;
        if holder.0 == 0 {
            return Ok(());
        }
        let ended = self.tables.is_ended(holder);
        self.require("session", !ended, DropReason::Revoked, || {
            let (account, session) = (holder.account(), holder.session());
            format!("session {session} of account {account} has {}", if ended { "ended" } else { "not ended" })
        })
    }

    /// Records a token and its flow. First checks for a replay, then checks the limits. A refused token does not count
    /// towards the limits.
    pub(super) fn admit(&mut self, claim: &Claim, key: FlowKey, packet: &Packet) -> Result<(), DropReason> {
        let (handle, now) = (claim.handle, self.now);
        let most = self.tables.config().flows_per_grant;
        let replay = self.tables.replay(&claim.once, now);
        self.require("replay", replay != Replay::Seen, DropReason::Replayed, || match replay {
            Replay::Seen => "the token was used before".into(),
            Replay::Fresh | Replay::Full => "the token was not used before".into(),
        })?;
        let live = self.tables.live_flow(&key, now);
        let relation = live
            .map_or(Relation::Opens, |flow| relation(self.tables.config(), &key, &flow, (handle, claim.holder), now));
        let in_use = self.tables.grant(handle);
        let opens = matches!(relation, Relation::Opens | Relation::Moves);
        let mut account = self.account(claim.holder, opens, in_use.is_none())?;
        let mut used = in_use.unwrap_or(GrantUse {
            flows: 0,
            expires: claim.expires,
            tokens: 0,
            window: 0,
            first: key,
            holder: claim.holder.0,
            reserved: 0,
        });
        if used.window != now / TOKEN_WINDOW {
            (used.window, used.tokens) = (now / TOKEN_WINDOW, 0);
        }
        let room = self.tables.put_grant(handle, used);
        self.require("grants in use", room, DropReason::FlowLimit, || {
            if room { "the table has an entry for the grant".into() } else { "the table is full".into() }
        })?;
        if in_use.is_none() {
            account = account.map(|used| AccountUse { grants: used.grants.wrapping_add(1), ..used });
            self.put_account(claim.holder, account);
        }
        let taken = used.tokens as i32;
        self.require("token limit", within(taken, most), DropReason::FlowLimit, || {
            let most = u64::from(most) * u64::from(TOKENS_PER_FLOW);
            format!("the grant has used {taken} of {most} tokens in this window of {TOKEN_WINDOW} s")
        })?;
        if opens {
            self.may_open(claim, &used, &key)?;
        }
        self.require("replay table", replay == Replay::Fresh, DropReason::FlowLimit, || match replay {
            Replay::Full => "the token's bucket is full of tokens that are still valid".into(),
            Replay::Fresh | Replay::Seen => "the token's bucket has a free entry".into(),
        })?;
        self.tables.remember(&claim.once, now);
        used.tokens = used.tokens.wrapping_add(1);
        self.tables.put_grant(handle, used);
        let account = account.map(|used| AccountUse { tokens: used.tokens.wrapping_add(1), ..used });
        self.put_account(claim.holder, account);
        let mut flow = match (relation, live) {
            (Relation::Passes, _) => {
                self.note("owner", true, || "the flow belongs to another grant's holder and is not changed".into());
                return Ok(());
            }
            (Relation::Renews | Relation::Moves, Some(flow)) => Flow { handle: handle.0, ..flow },
            _ => Flow { handle: handle.0, holder: claim.holder.0, since: now, ..Flow::default() },
        };
        // A UDP packet was counted when its flow was looked up, unless the flow lacked a recent token.
        let lacked = !is_proved(self.tables.config(), &key, &flow, now);
        if relation == Relation::Opens || packet.protocol == TCP || lacked {
            count(&mut flow, packet, now);
        }
        flow.proved = now;
        if packet.opens() {
            begin(&mut flow, packet);
            flow.since = now;
        }
        let before = self.tables.flow(&key);
        let room = self.tables.put_flow(&key, flow);
        self.require("flows", room, DropReason::FlowLimit, || {
            if room { "the table has an entry for the flow".into() } else { "the table is full".into() }
        })?;
        if relation == Relation::Renews {
            return Ok(());
        }
        used.flows = used.flows.wrapping_add(1);
        self.tables.put_grant(handle, used);
        self.put_account(claim.holder, account.map(|used| AccountUse { flows: used.flows.wrapping_add(1), ..used }));
        if let Some(before) = before.filter(Flow::has_grant) {
            self.release(&before);
        }
        Ok(())
    }

    /// Returns the resource use of the holder's account, or `None` if there is no holder. Checks that the account's
    /// limits allow one more token. If `opens` is true, also checks that they allow one more flow. If `is_new` is true,
    /// also checks that they allow one more grant in use.
    fn account(&mut self, holder: Holder, opens: bool, is_new: bool) -> Result<Option<AccountUse>, DropReason> {
        if holder.0 == 0 {
            return Ok(None);
        }
        let (number, window, most) =
            (holder.account(), self.now / TOKEN_WINDOW, self.tables.config().flows_per_account);
        let mut used = self.tables.account(number).unwrap_or_default();
        if used.window != window {
            (used.window, used.tokens) = (window, 0);
        }
        let room = self.tables.put_account(number, used);
        self.require("accounts", room, DropReason::FlowLimit, || match room {
            true => format!("the table has an entry for account {number}"),
            false => "the table of accounts is full".into(),
        })?;
        let taken = used.tokens as i32;
        self.require("account's tokens", within(taken, most), DropReason::FlowLimit, || {
            let most = u64::from(most) * u64::from(TOKENS_PER_FLOW);
            format!("account {number} has used {taken} of {most} tokens in this window of {TOKEN_WINDOW} s")
        })?;
        if opens {
            let flows = used.flows as i32;
            self.require("account's flows", flows < most as i32, DropReason::FlowLimit, || {
                format!("flows of account {number}: {flows}; the maximum is {most}")
            })?;
        }
        if is_new {
            let (grants, most) = (used.grants as i32, self.tables.config().grants_per_account);
            self.require("account's grants", grants < most as i32, DropReason::FlowLimit, || {
                format!("grants in use of account {number}: {grants}; the maximum is {most}")
            })?;
        }
        Ok(Some(used))
    }

    fn put_account(&mut self, holder: Holder, used: Option<AccountUse>) {
        if let Some(used) = used {
            self.tables.put_account(holder.account(), used);
        }
    }

    /// Checks whether the grant may have one more flow.
    fn may_open(&mut self, claim: &Claim, used: &GrantUse, key: &FlowKey) -> Result<(), DropReason> {
        let most = self.tables.config().flows_per_grant;
        if claim.single {
            let alone = used.first == *key;
            self.require("single flow", alone, DropReason::FlowLimit, || match alone {
                true => "the grant is used for this flow only".into(),
                false => "the grant is for a single flow, and another flow used it already".into(),
            })?;
        }
        let flows = used.flows as i32;
        self.require("flow limit", flows < most as i32, DropReason::FlowLimit, || {
            format!("flows of the grant: {flows}; the maximum is {most}")
        })
    }

    fn release(&mut self, flow: &Flow) {
        if let Some(mut used) = self.tables.grant(Handle(flow.handle)) {
            used.flows = used.flows.saturating_sub(1);
            self.tables.put_grant(Handle(flow.handle), used);
        }
        let holder = Holder(flow.holder);
        if let Some(mut used) = self.tables.account(holder.account()).filter(|_| holder.0 != 0) {
            used.flows = used.flows.saturating_sub(1);
            self.tables.put_account(holder.account(), used);
        }
    }
}

/// Reports whether one more token is within the budget for `most` flows. A count in the kernel's tables may be below 0
/// for a while, if a token was refunded after another core had begun the next window.
const fn within(tokens: i32, most: u32) -> bool {
    tokens / (TOKENS_PER_FLOW as i32) < most as i32
}
