//! The checks of a token of the scheme of LS, wire.md §6.4.3.

use super::{Tables, Trace, flow_limit};
use wire::map::{FlowKey, VerifierConfig};
use wire::{ClientKey, DropReason, Epoch, LsToken, ServerSecret, ls};

/// Judges a token as the kernel program would, and uses nothing up.
pub(super) fn token(
    tables: &impl Tables,
    config: &VerifierConfig,
    trace: &mut Trace,
    token: &LsToken,
    now: u64,
    key: &FlowKey,
) -> Result<(), DropReason> {
    let speaks = config.speaks(ls::SUITE);
    let text = if speaks { ls::NAME } else { "sha224, which `suites` does not name" };
    trace.check("suite", speaks, DropReason::UnknownSuite, text)?;

    let handle = token.pair.handle();
    let told = tables.pair(token.pair);
    let text = if told.is_some() { "the authority told of it" } else { "the authority did not tell of it" };
    trace.note("pair", Some(told.is_some()), format!("{handle}: {text}"));
    let mut told = told.ok_or(DropReason::UnknownEpoch)?;
    let of = Epoch(told.epoch);
    let secret = tables.key(of.on_wire()).filter(|(held, _)| *held == of).and_then(|(_, key)| ServerSecret::of(&key));
    let text = format!("epoch {}{}", of.0, if secret.is_some() { "" } else { ", which has no key here" });
    trace.note("epoch", Some(secret.is_some()), text);
    let secret = secret.ok_or(DropReason::UnknownEpoch)?;

    let left = i64::from(told.expires) - now as i64;
    trace.check("expiry", left > 0, DropReason::Expired, format!("the pair ends in {left} s"))?;
    let right = token.proves(&ClientKey::of(token.pair, secret.bytes()));
    trace.check("tag", right, DropReason::BadTag, if right { "right" } else { "wrong: forged or changed" })?;
    let revoked = tables.is_revoked(handle);
    let text = if revoked { "the pair is revoked" } else { "the pair is not" };
    trace.check("revoked", !revoked, DropReason::Revoked, text)?;
    let fresh = told.take(token.nonce2);
    let text = format!("nonce2 {} {}", token.nonce2, if fresh { "was not used" } else { "was used" });
    trace.check("replay", fresh, DropReason::Replayed, text)?;
    flow_limit(tables, config, trace, handle, false, key)
}
