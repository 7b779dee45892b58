use super::*;
use proptest::prelude::*;

fn url(number: usize) -> Url {
    Url::parse(&format!("https://a{number}.example.org:8443")).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Returns a choice of `count` authorities.
fn choice(count: usize) -> Choice {
    let mut choice = Choice::new(url(0), Duration::ZERO);
    choice.learn((0..count).map(url), Duration::ZERO);
    choice
}

/// How an authority treats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    Answers,
    Unable,
    Dead,
}

/// A cluster in virtual time.
struct World {
    choice: Choice,
    truth: Vec<Truth>,
    round_trips: Vec<Duration>,
    now: Duration,
    /// For each request: its start, the index of the authority that got it, and the outcome.
    asked: Vec<(Duration, usize, Truth)>,
}

impl World {
    fn new(round_trips: &[u64]) -> Self {
        let count = round_trips.len();
        let round_trips = round_trips.iter().copied().map(millis).collect();
        Self { choice: choice(count), truth: vec![Truth::Answers; count], round_trips, now: secs(1), asked: Vec::new() }
    }

    fn number(url: &Url) -> usize {
        (0..AUTHORITIES_MAX).find(|number| self::url(*number) == *url).unwrap()
    }

    /// Sends one request, and reports its outcome.
    fn ask(&mut self, url: &Url) -> Truth {
        let number = Self::number(url);
        let (started, truth) = (self.now, self.truth[number]);
        self.asked.push((started, number, truth));
        self.now += if truth == Truth::Dead { millis(300) } else { self.round_trips[number] };
        match truth {
            Truth::Answers => self.choice.answered(url, started, self.now),
            Truth::Unable => self.choice.unable(url, started, self.now),
            Truth::Dead => self.choice.failed(url, started, self.now),
        }
        truth
    }

    /// Makes a call, as `race` does: one authority after the other. Returns who answered.
    fn call(&mut self) -> Option<usize> {
        let (mut tried, began) = (Vec::new(), self.now);
        loop {
            match self.choice.next(&tried, self.now) {
                Turn::Ask(url) => {
                    if self.ask(&url) == Truth::Answers {
                        return Some(Self::number(&url));
                    }
                    tried.push(url);
                }
                Turn::Wait(pause) if self.now - began < secs(1) => self.now += pause,
                Turn::Wait(_) | Turn::Over => return None,
            }
        }
    }

    /// Measures those that are due, as `tend` does.
    fn tend(&mut self) {
        for url in self.choice.due(self.now) {
            if self.ask(&url) == Truth::Answers {
                self.choice.measured(&url, self.round_trips[Self::number(&url)], self.now);
            }
        }
        self.choice.settle();
    }

    fn used(&self) -> usize {
        Self::number(self.choice.used())
    }
}

fn truth() -> impl Strategy<Value = Truth> {
    prop_oneof![Just(Truth::Answers), Just(Truth::Unable), Just(Truth::Dead)]
}

proptest! {
    #[test]
    fn a_dead_authority_is_left_alone_while_another_answers(
        steps in prop::collection::vec((0..4_usize, truth(), 0..3000_u64), 1..200),
    ) {
        let mut world = World::new(&[5, 10, 20, 40]);
        for (number, truth, pause) in steps {
            world.truth[number] = truth;
            world.now += millis(pause);
            let already = world.asked.len();
            world.call();
            world.tend();
            for index in already..world.asked.len() {
                let (began, number, _) = world.asked[index];
                let last = |of: usize| world.asked[..index].iter().rev().find(|(_, number, _)| *number == of);
                let Some((failed, _, Truth::Dead)) = last(number) else { continue };
                let another_answers = (0..4).any(|other| {
                    other != number && last(other).is_none_or(|(_, _, truth)| *truth != Truth::Dead)
                });
                let rested = began - *failed >= PAUSES.0;
                prop_assert!(rested || !another_answers, "asked {number} again after {:?}", began - *failed);
            }
        }
    }

    #[test]
    fn a_dead_cluster_is_asked_at_a_bounded_pace(pauses in prop::collection::vec(0..400_u64, 1..200)) {
        let mut world = World::new(&[5, 10, 20]);
        world.truth.fill(Truth::Dead);
        let began = world.now;
        for pause in pauses {
            world.now += millis(pause);
            world.call();
            // Other callers come at the same time.
            for _ in 0..50 {
                let turn = world.choice.next(&[], world.now);
                if let Turn::Ask(url) = turn {
                    world.asked.push((world.now, World::number(&url), Truth::Dead));
                }
            }
        }
        let limit = (world.now - began).as_millis() / PACE.as_millis() + 3 + 1;
        prop_assert!(world.asked.len() as u128 <= limit, "{} requests, not {limit}", world.asked.len());
    }

    #[test]
    fn the_best_is_used_again_within_a_minute(
        order in Just(vec![5_u64, 50, 100, 200]).prop_shuffle(),
        steps in prop::collection::vec((0..4_usize, truth(), 0..5000_u64), 1..60),
    ) {
        let mut world = World::new(&order);
        for (number, truth, pause) in steps {
            world.truth[number] = truth;
            world.now += millis(pause);
            world.call();
            world.tend();
        }
        world.truth.fill(Truth::Answers);
        let whole_again = world.now;
        let nearest = order.iter().position(|time| *time == 5).unwrap();
        while world.now < whole_again + secs(60) {
            world.now += secs(1);
            prop_assert!(world.call().is_some());
            world.tend();
        }
        prop_assert_eq!(world.used(), nearest);
    }

    #[test]
    fn a_call_finds_the_one_that_answers(
        before in prop::collection::vec((0..4_usize, truth(), 0..2000_u64), 0..50), living in 0..4_usize,
    ) {
        let mut world = World::new(&[5, 10, 20, 40]);
        for (number, truth, pause) in before {
            world.truth[number] = truth;
            world.now += millis(pause);
            world.call();
        }
        world.truth.fill(Truth::Dead);
        world.truth[living] = Truth::Answers;
        // The first call may find out that those are dead that answered before, while the living one still has a pause.
        let answers = (0..3).find_map(|_| world.call());
        prop_assert_eq!(answers, Some(living));
        prop_assert_eq!(world.used(), living);
    }
}

#[test]
fn a_single_authority_is_asked_every_time() {
    let mut choice = Choice::new(url(0), Duration::ZERO);
    for _ in 0..100 {
        assert_eq!(choice.next(&[], Duration::ZERO), Turn::Ask(url(0)));
        choice.failed(&url(0), Duration::ZERO, Duration::ZERO);
        assert_eq!(choice.next(&[url(0)], Duration::ZERO), Turn::Over);
    }
    assert!(choice.due(secs(1000)).is_empty() && !choice.are_several());
}

#[test]
fn pauses_double_until_the_authority_has_worked_for_a_while() {
    let mut choice = choice(2);
    let mut now = secs(1);
    let mut fail = |choice: &mut Choice| {
        choice.failed(&url(0), now, now);
        let State::Down { until } = choice.hosts[0].state else { panic!("it is down") };
        let pause = until - now;
        now = until;
        (pause.as_secs(), now)
    };
    let pauses: Vec<_> = (0..7).map(|_| fail(&mut choice).0).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    let (_, back) = fail(&mut choice);
    choice.answered(&url(0), back, back);
    assert_eq!(fail(&mut choice).0, 30, "it failed again at once");
    choice.answered(&url(0), secs(400), secs(400));
    choice.failed(&url(0), secs(410), secs(410));
    assert_eq!(choice.hosts[0].state, State::Down { until: secs(411) });
}

#[test]
fn requests_that_began_before_count_once() {
    let mut choice = choice(2);
    for _ in 0..10 {
        choice.failed(&url(0), secs(1), secs(2));
    }
    assert_eq!(choice.hosts[0].state, State::Down { until: secs(3) });
    choice.answered(&url(0), secs(1), secs(2));
    assert_eq!(choice.used(), &url(1), "a late answer to an earlier request");
    choice.answered(&url(0), secs(3), secs(3));
    choice.failed(&url(0), secs(2), secs(4));
    assert_eq!(choice.hosts[0].state, State::Up, "an earlier request ran into its time limit");
}

#[test]
fn an_authority_that_ends_is_left_at_once_for_the_one_that_it_names() {
    let mut choice = choice(3);
    choice.ends(&url(0), Some(&url(2)), secs(1));
    assert_eq!(choice.used(), &url(2));
    choice.ends(&url(2), Some(&url(7)), secs(1));
    assert_eq!(choice.used(), &url(1), "an unknown one");
    choice.answered(&url(0), Duration::ZERO, secs(2));
    assert_eq!(choice.next(&[], secs(2)), Turn::Ask(url(1)), "its last answers do not call anybody back");
    choice.ends(&url(1), None, secs(2));
    assert_eq!(choice.next(&[], secs(2)), Turn::Ask(url(0)), "all end: the one that restarted first");
}

#[test]
fn without_a_majority_all_are_asked_as_before() {
    let mut world = World::new(&[5, 10, 20]);
    world.truth.fill(Truth::Unable);
    for _ in 0..10 {
        let already = world.asked.len();
        assert_eq!(world.call(), None);
        assert_eq!(world.asked.len() - already, 3, "each can still answer other requests");
        world.choice.answered(&url(0), world.now, world.now);
        world.now += millis(10);
    }
    world.truth[1] = Truth::Answers;
    assert_eq!(world.call(), Some(1));
}

#[test]
fn one_without_a_majority_is_better_than_a_dead_one() {
    let mut choice = choice(2);
    choice.unable(&url(0), secs(1), secs(1));
    assert_eq!(choice.used(), &url(1));
    choice.failed(&url(1), secs(1), secs(1));
    choice.answered(&url(0), secs(1), secs(1));
    assert_eq!((choice.used(), choice.hosts[0].rank(secs(1))), (&url(0), Rank::Unable));
}

#[test]
fn whom_nobody_helps_also_asks_those_that_failed_but_at_a_bounded_pace() {
    let mut choice = choice(3);
    [1, 2].iter().for_each(|failed| choice.failed(&url(*failed), secs(1), secs(1)));
    assert_eq!(choice.next(&[url(0)], secs(1)), Turn::Over, "their pauses are not over");
    assert_eq!(choice.next_or_failed(&[url(0)], secs(1)), Turn::Ask(url(1)));
    assert_eq!(choice.next_or_failed(&[url(0), url(1)], secs(1)), Turn::Wait(EARLY));
    assert_eq!(choice.next_or_failed(&[url(0), url(1)], secs(1) + EARLY), Turn::Ask(url(2)));
    assert_eq!(choice.next_or_failed(&[url(0), url(1), url(2)], secs(2)), Turn::Over);
    for _ in 0..10 {
        choice.failed(&url(1), secs(1) + EARLY, secs(1) + EARLY);
    }
    assert_eq!(choice.hosts[1].state, State::Down { until: secs(2) + EARLY }, "it is still the shortest pause");
    choice.answered(&url(2), secs(2), secs(2));
    for _ in 0..2 {
        assert_eq!(choice.next_or_failed(&[url(0)], secs(2)), Turn::Ask(url(2)), "it has answered since");
    }
}

#[test]
fn the_named_authority_takes_precedence_over_one_about_as_near() {
    let mut choice = choice(3);
    let mut measure = |times: [u64; 3]| {
        for (number, time) in times.into_iter().enumerate() {
            // Often enough for the smoothed time to follow.
            (0..40).for_each(|_| choice.measured(&url(number), millis(time), secs(10)));
        }
        choice.settle();
        World::number(choice.used())
    };
    assert_eq!(measure([10, 9, 9]), 0);
    assert_eq!(measure([17, 10, 20]), 0, "not much nearer");
    assert_eq!(measure([40, 10, 20]), 1);
    assert_eq!(measure([40, 14, 10]), 1, "not much nearer");
    assert_eq!(measure([11, 14, 10]), 0);
}

#[test]
fn who_was_measured_slow_while_in_use_is_used_again_soon() {
    let mut world = World::new(&[30, 1, 1]);
    world.now += FIRST_MEASUREMENT;
    world.tend();
    assert_ne!(world.used(), 0, "it has just started, and answers slowly");
    world.round_trips[0] = millis(1);
    world.now += RETURNS;
    world.tend();
    assert_eq!(world.used(), 0);
}

#[test]
fn a_list_is_bounded_and_the_named_and_the_used_one_stay() {
    let mut choice = choice(3);
    choice.failed(&url(0), secs(1), secs(1));
    assert_eq!(choice.used(), &url(1));
    choice.learn((10..100).map(url), secs(1));
    let urls: Vec<_> = choice.urls().cloned().collect();
    assert_eq!((urls.len(), &urls[..3]), (AUTHORITIES_MAX, &[url(0), url(1), url(10)][..]));
    assert_eq!(choice.used(), &url(1));
    choice.learn([], secs(1));
    assert_eq!(choice.urls().cloned().collect::<Vec<_>>(), [url(0), url(1)]);
    assert_eq!(choice.hosts[0].rank(secs(1)), Rank::Down, "what is known of them stays");
}

#[test]
fn far_authorities_get_more_time() {
    let mut choice = choice(2);
    assert_eq!(choice.patience(&url(0)), PATIENCE.0);
    choice.measured(&url(0), millis(150), secs(1));
    assert_eq!(choice.patience(&url(0)), millis(750));
    choice.measured(&url(1), secs(3), secs(1));
    assert_eq!(choice.patience(&url(1)), PATIENCE.1);
}
