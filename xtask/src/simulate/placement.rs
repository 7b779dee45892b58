//! Places authorization delegates, chooses the delegate that a sender asks, and computes how long the request takes.

use super::times::Times;

/// The regions in which a receiver's delegates are.
#[derive(Clone, Copy)]
pub enum Placement {
    /// One delegate, in the receiver's own region.
    Receiver,
    /// This many delegates, each in a different region drawn at random. The sender asks the nearest one.
    Drawn(usize),
}

/// The simulated placements, by name.
pub const PLACEMENTS: [(&str, Placement); 6] = [
    ("one, where the receiver is", Placement::Receiver),
    ("one, at random", Placement::Drawn(1)),
    ("2 at random, the nearest", Placement::Drawn(2)),
    ("4 at random, the nearest", Placement::Drawn(4)),
    ("8 at random, the nearest", Placement::Drawn(8)),
    ("16 at random, the nearest", Placement::Drawn(16)),
];

/// Round-trip times of one first contact.
pub struct Sample {
    /// Round-trip time from the sender to the delegate, in milliseconds.
    pub asking: u32,
    /// Round-trip time from the sender to the receiver, in milliseconds.
    pub direct: u32,
}

impl Sample {
    /// Returns the sum of both round-trip times as a multiple of the direct round-trip time.
    pub fn inflation(&self) -> f64 {
        f64::from(self.asking + self.direct) / f64::from(self.direct)
    }
}

/// Draws the delegates `draws` times, or once if the placement leaves nothing to chance. For each draw, returns a
/// sample of every pair of a sender and a receiver in different regions.
pub fn samples(times: &Times, placement: Placement, seed: u64, draws: u32) -> Vec<Sample> {
    let mut chance = Chance(seed);
    let mut samples = Vec::new();
    let draws = if matches!(placement, Placement::Receiver) { 1 } else { draws };
    for _ in 0..draws {
        for receiver in 0..times.len() {
            let delegates = match placement {
                Placement::Receiver => vec![receiver],
                Placement::Drawn(count) => chance.draw(count, times.len()),
            };
            for sender in (0..times.len()).filter(|sender| *sender != receiver) {
                let asking = delegates.iter().map(|delegate| times.between(sender, *delegate)).min();
                let asking = asking.expect("a placement has delegates");
                samples.push(Sample { asking, direct: times.between(sender, receiver) });
            }
        }
    }
    samples
}

/// A pseudorandom generator whose sequence is the same for the same seed: SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, 2014).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Draws `count` different numbers below `end`, or all numbers if there are no more than `count`.
    fn draw(&mut self, count: usize, end: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..end).collect();
        let count = count.min(end);
        for place in 0..count {
            let left = (end - place) as u128;
            let chosen = ((u128::from(self.next()) * left) >> 64) as usize;
            all.swap(place, place + chosen);
        }
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    #[test]
    fn every_place_is_drawn_about_as_often_and_none_twice_at_once() {
        let mut chance = Chance(7);
        let mut drawn = [0; 5];
        for _ in 0..10_000 {
            let mut places = chance.draw(2, 5);
            places.iter().for_each(|place| drawn[*place] += 1);
            places.dedup();
            assert_eq!(places.len(), 2);
        }
        assert!(drawn.iter().all(|times| (3_800..4_200).contains(times)), "{drawn:?}");
        let mut all = chance.draw(9, 4);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn numbers_are_those_that_the_publication_of_the_generator_gives() {
        // The first numbers for seed 1234567 of the authors' reference implementation.
        let mut chance = Chance(1_234_567);
        assert_eq!([chance.next(), chance.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }
}
