//! Tests of what discovery records make the agent do, and what they never do.

use super::*;

fn networks(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|text| text.parse().expect("a network")).collect()
}

impl Stage {
    fn hint(&mut self, list: &[&str]) -> usize {
        let before = self.reloads.len();
        self.agent.hinted(self.now, ALICE, &networks(list));
        self.settle();
        self.reloads.len() - before
    }
}

#[test]
fn a_hint_at_something_unknown_makes_the_agent_ask_its_authority_once() {
    let mut stage = Stage::alice();
    assert_eq!(stage.hint(&["192.0.2.0/24", "192.0.2.7/32", "192.0.0.0/16"]), 0, "that much is known");
    assert_eq!(stage.hint(&["192.0.2.0/24", "198.51.100.0/24"]), 1);
    for network in ["198.51.100.0/24", "203.0.113.0/24", "::/0"] {
        assert_eq!(stage.hint(&[network]), 0, "a flood of hints is no flood of questions");
    }
    stage.now += Duration::from_secs(61);
    assert_eq!(stage.hint(&["203.0.113.0/24"]), 1);
}

#[test]
fn a_hint_protects_nothing_and_asks_for_no_grant() {
    let mut stage = Stage::alice();
    let (protected, owners) = (stage.protected.clone(), stage.owners.clone());
    stage.hint(&["198.51.100.0/24", "0.0.0.0/0"]);
    stage.agent.hinted(stage.now, BOB, &networks(&["198.51.100.0/24"]));
    stage.settle();
    assert_eq!((&stage.protected, &stage.owners), (&protected, &owners));
    assert!(stage.requests.is_empty() && stage.entries.is_empty() && !stage.reloads.contains(&BOB));
    // Only the authority's own answer protects a network.
    stage
        .agent
        .destinations(stage.now, ALICE, Some((vec![receiver("198.51.100.0/24")], BTreeSet::new())))
        .expect("a few");
    stage.settle();
    assert_eq!(stage.protected, ["198.51.100.0/24"]);
}
