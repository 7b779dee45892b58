//! Services as sorted, disjoint ranges. In this form, one pass over two receivers finds the services that both have.

use crate::model::Service;

/// Ranges of numbers, each of which combines a protocol and a port. Both ends are included; the ranges are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(u32, u32)>);

impl Spans {
    pub(super) fn new(services: &[Service]) -> Self {
        let span = |service: &Service| match service.protocol {
            0 => (0, number(u8::MAX, u16::MAX)),
            protocol => (number(protocol, service.first_port), number(protocol, service.last_port)),
        };
        let mut spans: Vec<_> = services.iter().map(span).collect();
        spans.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (first, last) in spans {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    pub(super) fn covers(&self, protocol: u8, port: u16) -> bool {
        self.contains_span(number(protocol, port), number(protocol, port))
    }

    pub(super) fn contains(&self, other: &Self) -> bool {
        other.0.iter().all(|(first, last)| self.contains_span(*first, *last))
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some((first, last)), Some((other_first, other_last))) = (one.peek(), two.peek()) {
            if first <= other_last && other_first <= last {
                return true;
            }
            if last < other_last {
                one.next()
            } else {
                two.next()
            };
        }
        false
    }

    /// Returns the numbers that are in a range of `self` and in a range of `other`.
    pub(super) fn common(&self, other: &Self) -> Self {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some((first, last)), Some((other_first, other_last))) = (one.peek(), two.peek()) {
            let (begin, end) = (*first.max(other_first), *last.min(other_last));
            if begin <= end {
                both.push((begin, end));
            }
            if last < other_last {
                one.next();
            } else {
                two.next();
            }
        }
        Self(both)
    }

    /// Returns the spans as services: one for each protocol of a range. Protocol 0 alone can't be written as a service,
    /// so it is left out.
    pub(super) fn services(&self) -> Vec<Service> {
        let mut services = Vec::new();
        for (first, last) in &self.0 {
            if (*first, *last) == (0, number(u8::MAX, u16::MAX)) {
                services.push(Service::ALL);
                continue;
            }
            let protocols = (first >> 16).max(1)..=last >> 16;
            services.extend(protocols.filter_map(|protocol| {
                let protocol = u8::try_from(protocol).ok()?;
                let begin = (*first).max(number(protocol, 0));
                let end = (*last).min(number(protocol, u16::MAX));
                Some(Service { protocol, first_port: begin as u16, last_port: end as u16 })
            }));
        }
        services
    }

    /// Returns the first number of each range, and the first number after each range.
    pub(super) fn bounds(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(first, last)| [*first, *last + 1])
    }

    fn contains_span(&self, first: u32, last: u32) -> bool {
        let after = self.0.partition_point(|(begin, _)| *begin <= first);
        after.checked_sub(1).is_some_and(|at| last <= self.0[at].1)
    }
}

fn number(protocol: u8, port: u16) -> u32 {
    u32::from(protocol) << 16 | u32::from(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(services: &[(u8, u16, u16)]) -> Spans {
        let service = |(protocol, first_port, last_port): &_| Service {
            protocol: *protocol,
            first_port: *first_port,
            last_port: *last_port,
        };
        Spans::new(&services.iter().map(service).collect::<Vec<_>>())
    }

    #[test]
    fn spans_that_touch_are_one() {
        assert_eq!(spans(&[(6, 30, 40), (6, 20, 29), (17, 1, 2)]), spans(&[(6, 20, 40), (17, 1, 2)]));
        assert!(spans(&[(6, 20, 29), (6, 30, 40)]).contains(&spans(&[(6, 25, 35)])));
        assert!(!spans(&[(6, 20, 29), (6, 31, 40)]).contains(&spans(&[(6, 25, 35)])));
    }

    #[test]
    fn all_services_contain_every_other() {
        let all = Spans::new(&[Service::ALL]);
        assert!(all.contains(&spans(&[(1, 0, 65535), (255, 0, 65535)])) && all.covers(47, 0));
        assert!(!spans(&[(6, 0, 65535)]).contains(&all) && all.overlaps(&spans(&[(6, 7, 7)])));
    }

    #[test]
    fn the_common_part_is_written_as_services() {
        let one = spans(&[(6, 20, 30), (6, 50, 60), (17, 5, 5)]);
        assert_eq!(one.common(&spans(&[(6, 25, 55)])), spans(&[(6, 25, 30), (6, 50, 55)]));
        assert_eq!(one.common(&spans(&[(17, 0, 65535)])), spans(&[(17, 5, 5)]));
        assert_eq!(one.common(&Spans::default()), Spans::default());
        let all = Spans::new(&[Service::ALL]);
        assert_eq!((all.common(&one), one.common(&all), all.services()), (one.clone(), one, vec![Service::ALL]));
        let whole = |protocol| Service { protocol, first_port: 0, last_port: u16::MAX };
        let two = Spans::new(&[whole(6), whole(7)]);
        assert_eq!(two.services(), [whole(6), whole(7)], "two protocols that touch");
        assert_eq!(spans(&[(6, 25, 30), (17, 5, 5)]).services().len(), 2);
    }

    #[test]
    fn a_span_overlaps_at_its_ends() {
        let one = spans(&[(6, 20, 30), (17, 5, 5)]);
        for (other, overlaps) in [((6, 30, 40), true), ((6, 31, 40), false), ((6, 1, 20), true), ((17, 20, 30), false)]
        {
            assert_eq!((one.overlaps(&spans(&[other])), spans(&[other]).overlaps(&one)), (overlaps, overlaps));
        }
    }
}
