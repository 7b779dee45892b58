//! Lines for requests by datagram: their holders, replay protection and rate limits (wire.md §8.13, §8.14).
//!
//! Only a request with a valid seal changes any state. A request for an unknown line costs one look-up, and any other
//! datagram at most one attempt to open a seal. The rate of a source address counts only requests with a valid seal, so
//! an attacker who forges the address can't use that rate up.

use crate::model::random_keys::RandomKeys;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::ReplayWindow;
use wire::ask::{AnyQuestion, LineKey, LineNumber, envelope};
use wire::grant::mask;

/// Time for which a line's holder counts as being at the address from which the holder got the line, in microseconds:
/// an hour. Somebody else may have the address afterwards.
const AT_OPENER: u64 = 3600 * 1_000_000;
/// Number of requests that a line may make in a burst, and the microseconds until it may make one more.
const OF_LINE: (u64, u64) = (4096, 1000);
/// Number of requests that all lines of one source (an IPv4 address or an IPv6 /64) together may make in a burst, and
/// the microseconds until they may make one more.
const OF_SOURCE: (u64, u64) = (32_768, 25);
/// Maximum number of sources whose requests are counted at a time; they take some 5 MB.
const MOST_SOURCES: usize = 65_536;

/// The lines of all holders `H`. A holder has at most one line.
pub struct Lines<H> {
    lines: RandomKeys<LineNumber, Line<H>>,
    numbers: BTreeMap<H, LineNumber>,
    sources: BTreeMap<IpAddr, Pace>,
}

struct Line<H> {
    holder: H,
    key: LineKey,
    /// The address from which the holder got the line.
    opener: IpAddr,
    /// When the holder got the line, in microseconds.
    opened: u64,
    /// Counters that were used already, each reduced by 1, because counters begin at 1 and the window's numbers begin
    /// at 0.
    seen: ReplayWindow<16>,
    pace: Pace,
}

/// A request that passed all checks, so that the authority is allowed to answer it.
pub struct LineRequest<'d, H> {
    /// The holder of the line.
    pub holder: H,
    /// The line's key, with which the answer is sealed.
    pub key: LineKey,
    /// The request's counter, which the answer repeats.
    pub counter: u64,
    /// Whether the request came from the address from which the holder got the line, within an hour after that.
    pub is_from_opener: bool,
    /// The content of the request.
    pub question: AnyQuestion<'d>,
}

/// Reason why a datagram gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unanswered {
    /// The datagram is not a request.
    NotOurs,
    /// The line does not exist, or does not exist any more.
    NoLine,
    /// The request's counter was used before, or is older than the window of remembered counters.
    Repeated,
    /// The request is not sealed with the line's key.
    Forged,
    /// The line, or the source address, has made more requests than its rate allows.
    TooMany,
    /// The request is sealed with the line's key, but contains no valid question.
    Malformed,
}

impl Unanswered {
    /// Every reason for which a datagram gets no answer.
    pub const ALL: [Self; 6] =
        [Self::NotOurs, Self::NoLine, Self::Repeated, Self::Forged, Self::TooMany, Self::Malformed];

    /// Returns the name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::NoLine => "no_line",
            Self::Repeated => "repeated",
            Self::Forged => "forged",
            Self::TooMany => "too_many",
            Self::Malformed => "malformed",
        }
    }
}

impl<H> Default for Lines<H> {
    fn default() -> Self {
        Self { lines: RandomKeys::default(), numbers: BTreeMap::new(), sources: BTreeMap::new() }
    }
}

impl<H: Copy + Ord> Lines<H> {
    /// Issues a line to a holder at the address `opener`, and removes the line that the holder had before. The caller
    /// must draw `number` at random. If a line with this number exists already, changes nothing and returns `false`.
    /// `now` is in microseconds of the clock of [`Self::read`].
    pub fn give(&mut self, holder: H, number: LineNumber, key: LineKey, opener: IpAddr, now: u64) -> bool {
        if self.lines.contains_key(&number) {
            return false;
        }
        if let Some(before) = self.numbers.insert(holder, number) {
            self.lines.remove(&before);
        }
        let (seen, pace) = (ReplayWindow::default(), Pace::default());
        self.lines.insert(number, Line { holder, key, opener, opened: now, seen, pace });
        true
    }

    /// Removes the lines of all holders except those that `is_kept` accepts.
    pub fn keep(&mut self, is_kept: impl Fn(&H) -> bool) {
        self.lines.retain(|_, line| is_kept(&line.holder));
        self.numbers.retain(|holder, _| is_kept(holder));
    }

    /// Returns the number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Reports whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Reads a datagram in place (wire.md §8.13.6). `now` is in microseconds of a clock that is never set back.
    ///
    /// # Errors
    ///
    /// Returns the reason why the datagram gets no answer.
    pub fn read<'d>(
        &mut self,
        datagram: &'d mut [u8],
        source: IpAddr,
        now: u64,
    ) -> Result<LineRequest<'d, H>, Unanswered> {
        let envelope = envelope(datagram).ok_or(Unanswered::NotOurs)?;
        let line = self.lines.get_mut(&envelope.line).ok_or(Unanswered::NoLine)?;
        let number = envelope.counter.checked_sub(1).filter(|number| line.seen.is_new(*number));
        let number = number.ok_or(Unanswered::Repeated)?;
        let question = line.key.open_request(envelope, datagram).ok_or(Unanswered::Forged)?;
        line.seen.note(number);
        let is_from_opener = source == line.opener && now.saturating_sub(line.opened) <= AT_OPENER;
        let source = mask(source, if source.is_ipv4() { 32 } else { 64 });
        if !line.pace.allows(OF_LINE, now) || !paced(&mut self.sources, source, now) {
            return Err(Unanswered::TooMany);
        }
        line.pace.charge(OF_LINE, now);
        let question = AnyQuestion::decode(question).ok_or(Unanswered::Malformed)?;
        let (holder, key, counter) = (line.holder, line.key.clone(), envelope.counter);
        Ok(LineRequest { holder, key, counter, is_from_opener, question })
    }
}

/// Counts a request against the rate of its source, if the rate allows the request. Returns whether the rate allows it.
fn paced(sources: &mut BTreeMap<IpAddr, Pace>, source: IpAddr, now: u64) -> bool {
    if sources.len() >= MOST_SOURCES && !sources.contains_key(&source) {
        sources.retain(|_, pace| pace.0 > now);
        if sources.len() >= MOST_SOURCES {
            return false;
        }
    }
    let pace = sources.entry(source).or_default();
    let allowed = pace.allows(OF_SOURCE, now);
    if allowed {
        pace.charge(OF_SOURCE, now);
    }
    allowed
}

/// State of a rate limiter (virtual scheduling): the time, in microseconds, up to which the requests so far have used
/// the rate.
#[derive(Clone, Copy, Default)]
struct Pace(u64);

impl Pace {
    fn allows(self, (most, each): (u64, u64), now: u64) -> bool {
        self.0.saturating_sub(now) <= (most - 1) * each
    }

    fn charge(&mut self, (_, each): (u64, u64), now: u64) {
        self.0 = self.0.max(now).saturating_add(each);
    }
}

#[cfg(test)]
mod tests;
