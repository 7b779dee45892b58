//! Chooses which authority of a cluster gets the next request: the authority in use as long as it answers, otherwise
//! another authority. Changes back to the best authority when that authority answers again. This module does no IO.
//! Callers pass times as durations since a common start, and report the outcome of each request.

use api::AUTHORITIES_MAX;
use reqwest::Url;
use std::time::Duration;

/// The first and the longest pause after which a client asks a failed authority again, while another authority answers.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The pauses of an authority begin anew if it has worked for at least this long.
const STABLE: Duration = Duration::from_secs(10);
/// Pause before an authority that announced its end is asked again: a restart takes some seconds.
const RESTART: Duration = Duration::from_secs(5);
/// Minimum interval between requests to authorities that failed, if no authority answers.
pub(crate) const PACE: Duration = Duration::from_millis(100);
/// Minimum interval between requests to authorities that failed and whose pauses are not over, if another authority
/// counts as alive.
const EARLY: Duration = Duration::from_millis(500);
/// Time after which the round trip to a new authority is first measured. So processes that end soon measure nothing.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(5);
/// Interval at which the round trips to authorities that answer are measured again.
const MEASUREMENTS: Duration = Duration::from_secs(300);
/// Interval of the measurements while the first authority is not in use.
const RETURNS: Duration = Duration::from_secs(5);
/// The shortest and the longest time for which the client waits for an answer before it sends the same request to
/// another authority.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(2));
/// Time for which the last answer of an authority shows that it is reachable.
const FRESH: Duration = Duration::from_secs(2);

/// The next step of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Send the request to this authority.
    Ask(Url),
    /// Wait for this time, and ask for the next step again. Only authorities that failed are left, and the client sent
    /// a request to one of them just now.
    Wait(Duration),
    /// Give up: no authority is left that the caller has not tried yet and that may answer now.
    Over,
}

/// The authorities of a cluster, and what is known about each of them.
pub(crate) struct Choice {
    /// The authorities, in order of importance. The first is the authority that a person or an administrator named.
    /// Never empty.
    hosts: Vec<Host>,
    /// The index of the authority in use.
    current: usize,
    /// The earliest time of the next request to an authority that failed, while its pause is not over.
    next_trial: Duration,
}

struct Host {
    url: Url,
    state: State,
    /// The pause that follows the next failure.
    pause: Duration,
    /// The time when a failure was last noted. Answers to requests that began earlier no longer count.
    failed: Option<Duration>,
    /// The time since which the authority has answered without a failure.
    works_since: Option<Duration>,
    /// The start of the latest request that the authority answered.
    answered: Option<Duration>,
    /// The smoothed round-trip time.
    round_trip: Option<Duration>,
    /// The time at which the client learnt of the authority, and the time of the last measurement.
    known_since: Duration,
    measured: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The authority answers, or no request was sent to it yet.
    Up,
    /// The authority answers, but could not carry out a request that needs the cluster's majority. Until the time
    /// `until`, other authorities are preferred.
    Unable { until: Duration },
    /// The authority did not answer. The pause before the next request ends at `until`.
    Down { until: Duration },
}

/// The order in which authorities are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Up,
    /// The authority failed, and the pause after the failure is over.
    Due,
    Unable,
    Down,
}

impl Host {
    fn new(url: Url, now: Duration) -> Self {
        Self {
            url,
            state: State::Up,
            pause: PAUSES.0,
            failed: None,
            works_since: None,
            answered: None,
            round_trip: None,
            known_since: now,
            measured: None,
        }
    }

    fn rank(&self, now: Duration) -> Rank {
        match self.state {
            State::Up => Rank::Up,
            State::Unable { until } | State::Down { until } if until <= now => Rank::Due,
            State::Unable { .. } => Rank::Unable,
            State::Down { .. } => Rank::Down,
        }
    }

    /// The end of the pause of an authority that does not answer.
    fn down_until(&self) -> Duration {
        if let State::Down { until } = self.state { until } else { Duration::ZERO }
    }

    /// Notes a failure of a request that began at `started`, unless something newer is known. Returns the end of the
    /// pause that begins.
    fn fail(&mut self, started: Duration, now: Duration) -> Option<Duration> {
        let is_old = self.failed.is_some_and(|failed| started < failed);
        if is_old || self.answered.is_some_and(|answered| started < answered) {
            return None;
        }
        // The request came before the end of the pause, so the next pause does not become longer.
        if let State::Down { until } | State::Unable { until } = self.state
            && started < until
        {
            self.failed = Some(now);
            return Some(until.max(now + PAUSES.0));
        }
        if self.works_since.take().is_some_and(|since| now.saturating_sub(since) >= STABLE) {
            self.pause = PAUSES.0;
        }
        let until = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSES.1);
        self.failed = Some(now);
        Some(until)
    }
}

impl Choice {
    /// Creates a choice with one authority, `own`.
    pub fn new(own: Url, now: Duration) -> Self {
        Self { hosts: vec![Host::new(own, now)], current: 0, next_trial: Duration::ZERO }
    }

    /// Replaces all authorities except two: the first one, and the one in use, which stays even if `urls` does not
    /// contain it, because it answers. Keeps at most [`AUTHORITIES_MAX`] authorities.
    pub fn learn(&mut self, urls: impl IntoIterator<Item = Url>, now: Duration) {
        let used = self.used().clone();
        let mut before = std::mem::take(&mut self.hosts).into_iter();
        self.hosts.extend(before.next());
        let mut before: Vec<_> = before.collect();
        for url in [used.clone()].into_iter().chain(urls) {
            if self.hosts.len() < AUTHORITIES_MAX && self.hosts.iter().all(|host| host.url != url) {
                let known = before.iter().position(|host| host.url == url);
                self.hosts.push(known.map_or_else(|| Host::new(url, now), |index| before.swap_remove(index)));
            }
        }
        self.current = self.find(&used).unwrap_or_default();
    }

    /// Returns the URL of the authority in use.
    pub fn used(&self) -> &Url {
        &self.hosts[self.current].url
    }

    /// Returns the URLs of all authorities.
    pub fn urls(&self) -> impl Iterator<Item = &Url> {
        self.hosts.iter().map(|host| &host.url)
    }

    /// Reports whether there is more than one authority.
    pub fn are_several(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Reports whether at least one of the authorities answers, or has not been asked yet.
    pub fn is_alive(&self) -> bool {
        self.hosts.iter().any(|host| !matches!(host.state, State::Down { .. }))
    }

    /// Reports whether the authority in use has answered very recently.
    pub fn is_fresh(&self, now: Duration) -> bool {
        let host = &self.hosts[self.current];
        host.state == State::Up && host.answered.is_some_and(|answered| answered + FRESH >= now)
    }

    /// Returns the caller's next step. `tried` contains the authorities that the caller has already asked in the
    /// present call.
    pub fn next(&mut self, tried: &[Url], now: Duration) -> Turn {
        self.turn(tried, now, false)
    }

    /// Does what [`Self::next`] does, for a caller that still waits for the answers of all authorities that it has
    /// asked. So the next step may also be a request to an authority that failed and whose pause is not over, because
    /// this authority may work again.
    pub fn next_or_failed(&mut self, tried: &[Url], now: Duration) -> Turn {
        self.turn(tried, now, true)
    }

    fn turn(&mut self, tried: &[Url], now: Duration, or_failed: bool) -> Turn {
        if let [only] = &self.hosts[..] {
            return if tried.is_empty() { Turn::Ask(only.url.clone()) } else { Turn::Over };
        }
        let untried = self.hosts.iter().enumerate().filter(|(_, host)| !tried.contains(&host.url));
        let Some((_, host)) = untried.min_by_key(|(index, host)| self.order(*index, host, now)) else {
            return Turn::Over;
        };
        let url = host.url.clone();
        if self.is_alive() {
            if host.rank(now) < Rank::Down {
                return Turn::Ask(url);
            } else if !or_failed {
                return Turn::Over;
            }
        }
        if now < self.next_trial {
            return Turn::Wait(self.next_trial - now);
        }
        self.next_trial = now + if self.is_alive() { EARLY } else { PACE };
        Turn::Ask(url)
    }

    fn order(&self, index: usize, host: &Host, now: Duration) -> (Rank, Duration, bool, bool, Duration, usize) {
        let rank = host.rank(now);
        let until = if rank == Rank::Down { host.down_until() } else { Duration::ZERO };
        (rank, until, index != self.current, index != 0, host.round_trip.unwrap_or(Duration::MAX), index)
    }

    /// Returns how long a caller waits for this authority's answer before it sends the same request to another
    /// authority.
    pub fn patience(&self, url: &Url) -> Duration {
        let host = self.find(url).map(|index| &self.hosts[index]);
        let round_trip = host.and_then(|host| host.round_trip).unwrap_or_default();
        // A new connection costs three round trips before the request is sent.
        (round_trip * 5).clamp(PATIENCE.0, PATIENCE.1)
    }

    /// Notes that an authority answered a request that began at `started`. Negative answers count, too.
    pub fn answered(&mut self, url: &Url, started: Duration, now: Duration) {
        let Some(index) = self.find(url) else { return };
        let host = &mut self.hosts[index];
        if host.failed.is_some_and(|failed| started < failed) {
            return;
        }
        host.answered = host.answered.max(Some(started));
        // It may answer other requests although it can't do what it was last asked to do.
        let is_unable = matches!(host.state, State::Unable { until } if now < until);
        if !is_unable {
            host.state = State::Up;
            host.works_since.get_or_insert(now);
        }
        let is_better = match self.hosts[self.current].state {
            State::Up => false,
            State::Unable { .. } => !is_unable,
            State::Down { .. } => true,
        };
        if is_better {
            self.current = index;
        }
    }

    /// Begins to use an authority that has just answered, unless this authority has announced since then that it is
    /// about to stop.
    pub fn adopt(&mut self, url: &Url) {
        let answers = |index: &usize| !matches!(self.hosts[*index].state, State::Down { .. });
        if let Some(index) = self.find(url).filter(answers) {
            self.current = index;
        }
    }

    /// Notes that an authority did not answer a request that began at `started`. If this authority is in use, the
    /// choice changes to another authority that is more likely to answer, if there is one.
    pub fn failed(&mut self, url: &Url, started: Duration, now: Duration) {
        let Some(index) = self.find(url) else { return };
        if let Some(until) = self.hosts[index].fail(started, now) {
            self.hosts[index].state = State::Down { until };
            self.leave_if_used(index, now);
        }
    }

    /// Notes that an authority could not carry out a request that began at `started`, because the authority has lost
    /// the cluster's majority.
    pub fn unable(&mut self, url: &Url, started: Duration, now: Duration) {
        let Some(index) = self.find(url) else { return };
        if let Some(until) = self.hosts[index].fail(started, now) {
            self.hosts[index].state = State::Unable { until };
            self.leave_if_used(index, now);
        }
    }

    /// Notes that the authority at `url` has announced that it is about to stop. `next` is the authority that it
    /// recommends.
    pub fn ends(&mut self, url: &Url, next: Option<&Url>, now: Duration) {
        let Some(index) = self.find(url) else { return };
        let host = &mut self.hosts[index];
        host.failed = Some(now);
        host.works_since = None;
        host.state = State::Down { until: now + RESTART };
        match next.and_then(|next| self.find(next)).filter(|next| self.hosts[*next].rank(now) == Rank::Up) {
            Some(next) => self.current = next,
            None => self.leave_if_used(index, now),
        }
    }

    /// If the authority `index` is in use, changes to another authority that is more likely to answer, if there is one.
    fn leave_if_used(&mut self, index: usize, now: Duration) {
        let best = self.hosts.iter().enumerate().min_by_key(|(index, host)| self.order(*index, host, now));
        if self.current == index
            && let Some((best, _)) = best.filter(|(_, host)| host.rank(now) < Rank::Down)
        {
            self.current = best;
        }
    }

    /// Notes the round-trip time to an authority, as it was measured.
    pub fn measured(&mut self, url: &Url, took: Duration, now: Duration) {
        let Some(index) = self.find(url) else { return };
        let host = &mut self.hosts[index];
        // Load makes a round trip longer, and never shorter.
        let smoothed = |before: Duration| if took < before { took } else { (before * 3 + took) / 4 };
        host.round_trip = Some(host.round_trip.map_or(took, smoothed));
        host.measured = Some(now);
    }

    /// Returns the authorities whose round trip has to be measured now. An authority that answers is measured at
    /// intervals, and an authority that failed is measured when its pause is over.
    pub fn due(&self, now: Duration) -> Vec<Url> {
        // An authority that has just started answers slowly at first. If the client leaves it for that, it must come
        // back soon.
        let interval = if self.current == 0 { MEASUREMENTS } else { RETURNS };
        let due_at =
            |host: &Host| host.measured.map_or(host.known_since + FIRST_MEASUREMENT, |measured| measured + interval);
        let is_due = |host: &&Host| match host.rank(now) {
            Rank::Up => due_at(host) <= now,
            Rank::Due => true,
            Rank::Unable | Rank::Down => false,
        };
        let several = if self.are_several() { &self.hosts[..] } else { &[] };
        several.iter().filter(is_due).map(|host| host.url.clone()).collect()
    }

    /// Begins to use the best of the authorities that answer: the authority with the shortest round trip. Prefers the
    /// first authority if its round trip is about as short. Keeps the authority in use if the round trips of others are
    /// only a little shorter.
    pub fn settle(&mut self) {
        let measured = |host: &Host| host.round_trip.filter(|_| host.state == State::Up);
        let times = self.hosts.iter().enumerate().filter_map(|(index, host)| Some((measured(host)?, index)));
        let Some((least, nearest)) = times.min() else { return };
        let is_within = |host: &Host, limit: Duration| measured(host).is_some_and(|time| time <= limit);
        if is_within(&self.hosts[0], least * 5 / 4 + Duration::from_millis(5)) {
            self.current = 0;
        } else if !is_within(&self.hosts[self.current], least * 3 / 2 + Duration::from_millis(5)) {
            self.current = nearest;
        }
    }

    fn find(&self, url: &Url) -> Option<usize> {
        self.hosts.iter().position(|host| host.url == *url)
    }
}

#[cfg(test)]
mod tests;
