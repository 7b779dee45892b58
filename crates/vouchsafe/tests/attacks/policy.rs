//! Policy files designed to exhaust a running server: it refuses them or stays within bounds; the policy in force
//! stays.

use crate::HERE;
use crate::stage::Stage;

/// Largest growth of the authority's memory while it reads the largest policies, in bytes.
const MEMORY: u64 = 400 << 20;
/// The largest text of a policy, in bytes.
const MOST: usize = 4 << 20;

/// Returns as many copies of `part` as fit into a policy.
fn filled(head: &str, part: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for part in (0..).map(part).take_while(|part| !part.is_empty()) {
        if text.len() + part.len() > MOST {
            break;
        }
        text += &part;
    }
    text
}

#[test]
fn a_policy_that_is_made_to_blow_up_changes_nothing() {
    let mut stage = Stage::start();
    let token = stage.token(HERE, "alice");
    let receiver = "[[receivers]]\nname = \"r\"\naddress = \"203.0.113.10\"\nservices = \"all\"\nverifier = \"v\"\n";
    let rule = "[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"r\"\n";
    let file = stage.room().join("draft.toml");
    for (what, text) in [
        ("too long", "#".repeat(MOST + 1)),
        ("deep", format!("a = {}", "[".repeat(1_000_000))),
        ("deep keys", filled("", |_| "a.".into())),
        ("faults", filled("", |index| format!("k{index} = 1\n"))),
        ("rules without receivers", filled("", |_| rule.into())),
        ("the same receiver", filled("", |_| receiver.into())),
        ("receivers inside each other", filled("", |n| receiver.replace("\"r\"", &format!("\"r{n}\"")))),
        ("broken text", filled("", |_| "\u{1}".into())),
        (
            "tests that fail",
            filled(&format!("{receiver}{rule}"), |_| {
                "[[tests]]\nwho = \"everyone\"\nto = \"203.0.113.10 tcp/22\"\nexpect = \"deny\"\n".into()
            }),
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let (done, said) = stage.tried(&["policy", "apply", file.to_str().unwrap()]);
        assert!(!done, "{what} was put in force");
        assert!(said.len() < 100_000, "{what}: {} bytes were said of it", said.len());
        stage.is_well_within(MEMORY);
    }
    assert_eq!(crate::grant(&stage, &token).status, 200, "what was in force is");

    // The largest valid policy.
    let most = filled(receiver, |n| rule.replace("everyone", &format!("person:p{n}")));
    std::fs::write(&file, most).unwrap();
    let (done, said) = stage.tried(&["policy", "apply", file.to_str().unwrap()]);
    assert!(done, "{said}");
    stage.is_well_within(MEMORY);
    assert_eq!(crate::grant(&stage, &token).status, 403);
}
