//! The rules for which datagrams of a UDP flow carry tokens (wire.md §4.1.3). The kernel program (`bpf/agent.bpf.c`)
//! has the same rules.

use wire::map::Conversation;

/// Interval in seconds between the tokens of a flow that the server has answered. If a flow sent no datagram for this
/// long, its next datagram counts as the first datagram of a new flow.
pub const UDP_TOKEN_EVERY: u32 = 15;
/// Interval between tokens of a flow without an answer, in seconds.
pub const UDP_TOKEN_UNANSWERED: u32 = 1;
/// Number of datagrams at the beginning of a flow that all carry tokens, as long as the server has not answered.
pub const UDP_FIRST: u16 = 4;

/// Number of seconds in which an answered flow may send without another answer. After that, the flow is unanswered: a
/// NAT may have given it another port, which the verifier does not know.
pub const UDP_PATIENCE: u16 = 3;

/// Records that a datagram is sent on the flow at the time `now`, in seconds of any clock.
pub fn note(flow: &mut Conversation, now: u32) {
    // Another core may already have recorded the next second.
    let silence = now.wrapping_sub(flow.seen).wrapping_add(1);
    if silence > UDP_TOKEN_EVERY {
        (flow.answered, flow.sent) = (0, 0);
    } else if silence > 1 && flow.answered > 0 {
        flow.answered = if flow.answered < UDP_PATIENCE { flow.answered + 1 } else { 0 };
    }
    flow.seen = now;
}

/// Reports whether the datagram that [`note`] recorded last needs a token; if so, records that the datagram carries a
/// token. A datagram needs a token if the interval after the flow's last token has passed. In a flow without an answer,
/// the first [`UDP_FIRST`] datagrams need a token, too, and so does every datagram whose number is a power of two. The
/// flow then begins soon, even if its first datagrams were lost in a burst.
pub fn needs_token(flow: &mut Conversation, now: u32) -> bool {
    flow.sent = flow.sent.saturating_add(1);
    let is_early = flow.answered == 0 && (flow.sent <= UDP_FIRST || flow.sent.is_power_of_two());
    let every = if flow.answered == 0 { UDP_TOKEN_UNANSWERED } else { UDP_TOKEN_EVERY };
    let is_due = now.wrapping_sub(flow.token) as i32 >= every as i32;
    if is_early || is_due {
        flow.token = now;
    }
    is_early || is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `datagrams` datagrams in the second `now`, and returns the numbers of those that carry tokens. The first
    /// datagram has the number 1.
    fn tokens(flow: &mut Conversation, now: u32, datagrams: u32) -> Vec<u32> {
        let carries = |_: &u32| {
            note(flow, now);
            needs_token(flow, now)
        };
        (1..=datagrams).filter(carries).collect()
    }

    fn new_flow() -> Conversation {
        Conversation { token: 99, answered: 0, sent: 0, subject: 1, seen: 100 }
    }

    #[test]
    fn the_first_datagrams_carry_tokens_then_fewer_and_fewer() {
        assert_eq!(tokens(&mut new_flow(), 100, 100), [1, 2, 3, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_flow_without_an_answer_has_about_one_token_a_second() {
        let mut flow = new_flow();
        tokens(&mut flow, 100, 1000);
        let later: usize = (101..161).map(|now| tokens(&mut flow, now, 1000).len()).sum();
        // One at the beginning of each second, and the 1024th to the 32768th datagram.
        assert_eq!(later, 60 + 6);
        assert_eq!(tokens(&mut flow, 161, 100_000), [1]);
    }

    #[test]
    fn an_answered_flow_in_use_has_a_token_every_fifteen_seconds() {
        let mut flow = new_flow();
        tokens(&mut flow, 100, 10);
        let is_due = |now: &u32| {
            flow.answered = 1;
            !tokens(&mut flow, *now, 10).is_empty()
        };
        let at: Vec<u32> = (100..161).filter(is_due).collect();
        assert_eq!(at, [115, 130, 145, 160]);
    }

    #[test]
    fn a_flow_whose_answers_cease_has_a_token_each_second_from_the_third_on() {
        let mut flow = new_flow();
        tokens(&mut flow, 100, 10);
        flow.answered = 1;
        let at: Vec<u32> = (100..107).filter(|now| !tokens(&mut flow, *now, 10).is_empty()).collect();
        assert_eq!(at, [103, 104, 105, 106]);
        flow.answered = 1;
        assert!(tokens(&mut flow, 107, 10).is_empty(), "an answer ends that");
    }

    #[test]
    fn seconds_without_a_datagram_do_not_count() {
        let mut flow = new_flow();
        tokens(&mut flow, 100, 10);
        flow.answered = 1;
        let at: Vec<u32> =
            [100, 104, 108, 112].into_iter().filter(|now| !tokens(&mut flow, *now, 1).is_empty()).collect();
        assert_eq!(at, [112]);
    }

    #[test]
    fn a_flow_that_was_silent_begins_anew() {
        let mut flow = new_flow();
        tokens(&mut flow, 100, 10);
        flow.answered = 1;
        assert!(tokens(&mut flow, 114, 10).is_empty());
        flow.answered = 1;
        assert_eq!(tokens(&mut flow, 129, 10), [1, 2, 3, 4, 8]);
    }

    #[test]
    fn the_next_second_of_another_core_is_no_silence() {
        let mut flow = Conversation { token: 101, answered: 1, sent: 100, subject: 1, seen: 101 };
        assert!(tokens(&mut flow, 100, 10).is_empty());
    }
}
