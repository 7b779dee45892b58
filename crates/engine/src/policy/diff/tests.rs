use super::*;

const NOW: u64 = 1_772_452_800; // 2026-03-02T12:00:00Z, a Monday

const BEFORE: &str = r#"
[groups]
staff = ["alice", "bob"]

[[receivers]]
name = "git"
address = ["203.0.113.10", "2001:db8::10"]
services = ["tcp/22", "tcp/443"]
verifier = "v"

[[receivers]]
name = "lab"
address = "203.0.113.64/28"
services = "all"
verifier = "v"

[[rules]]
name = "git"
action = "allow"
who = "group:staff"
to = "git"
"#;

fn told(old: &str, new: &str) -> Vec<String> {
    let read = |text: &str| Policy::parse(text, 3600).unwrap_or_else(|faults| panic!("{faults}"));
    let changes = compare(&read(old), &read(new), NOW).unwrap();
    let words = changes.iter().map(|change| {
        let to: Vec<_> = change
            .to
            .iter()
            .map(|place| {
                format!("{} {} ({})", place.prefixes.join(" "), place.services.join(" "), place.receivers.join(" "))
            })
            .collect();
        let at = if change.at.is_empty() { String::new() } else { format!(" at {}", change.at.join(" ")) };
        format!("{:?}: {}: {}{at}: {} -> {}", change.kind, change.who.join("; "), to.join("; "), change.old, change.new)
    });
    words.collect()
}

#[test]
fn the_same_policy_in_other_words_changes_nothing() {
    assert_eq!(told(BEFORE, BEFORE), [""; 0]);
    let other = BEFORE.replace("who = \"group:staff\"", "who = [\"person:bob\", \"person:alice\", \"group:staff\"]");
    assert_eq!(told(BEFORE, &format!("# moved\n\n{other}")), [""; 0]);
}

#[test]
fn a_new_member_gains_and_a_removed_one_loses() {
    let to = "203.0.113.10 2001:db8::10 tcp/22 tcp/443 (git)";
    let allowed = "allowed by policy.toml:17 git (application, 5m, siphash)";
    let changed = BEFORE.replace("\"bob\"", "\"carol\"");
    assert_eq!(
        told(BEFORE, &changed),
        [
            format!("Gains: carol: {to}: no rule allows it -> {allowed}"),
            format!("Loses: bob: {to}: {allowed} -> no rule allows it"),
            // A person who is in staff by login is so under both policies.
            format!("Stays: bob, in staff by login; carol, in staff by login: {to}: {allowed} -> {allowed}")
        ]
    );
}

#[test]
fn only_the_part_that_changes_is_told() {
    let deny = "\n[[receivers]]\nname = \"printer\"\naddress = \"203.0.113.70\"\nservices = \"tcp/631\"\nverifier = \"v\"\n\
                [[rules]]\naction = \"allow\"\nwho = \"person:alice\"\nto = \"printer\"\n";
    assert_eq!(
        told(BEFORE, &format!("{BEFORE}{deny}")),
        [
            "Gains: alice: 203.0.113.70 tcp/631 (lab printer): no rule allows it -> allowed by policy.toml:28 rule 2 (application, 5m, siphash)"
        ]
    );
}

#[test]
fn groups_by_login_tags_and_addresses_are_told_where_they_matter() {
    let lab = |who: &str| format!("{BEFORE}[[rules]]\naction = \"allow\"\nwho = [{who}]\nto = \"lab\"\n");
    let gains = |who: &str| {
        format!(
            "Gains: {who}: 203.0.113.64/28 all (lab): no rule allows it -> allowed by policy.toml:22 rule 2 (application, 5m, siphash)"
        )
    };
    let sorted = |with: &str| ["alice", "anyone else", "bob"].map(|name| format!("{name}, {with}")).join("; ");
    assert_eq!(told(BEFORE, &lab("\"tag:laptops\"")), [gains(&sorted("on laptops"))]);
    assert_eq!(told(BEFORE, &lab("\"address:192.0.2.0/24\"")), [gains(&sorted("from 192.0.2.0/24"))]);
    // Staff by login counts as staff: the result does not repeat it for persons who are staff by the file.
    let staff = told(BEFORE, &lab("\"group:staff\""));
    assert_eq!(staff, [gains("alice; anyone else, in staff by login; bob")]);
}

#[test]
fn an_exception_is_told_as_what_stays() {
    let changed = format!(
        "{BEFORE}[[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"lab\"\n\
                           [[rules]]\nname = \"byod\"\naction = \"deny\"\nwho = \"tag:byod\"\nto = \"lab\"\n"
    );
    let old = format!("{BEFORE}[[rules]]\nname = \"byod\"\naction = \"deny\"\nwho = \"tag:byod\"\nto = \"lab\"\n");
    assert_eq!(
        told(&old, &changed),
        [
            "Gains: alice; anyone else; bob: 203.0.113.64/28 all (lab): no rule allows it -> allowed by policy.toml:22 rule 2 (application, 5m, siphash)",
            "Stays: alice, on byod; anyone else, on byod; bob, on byod: 203.0.113.64/28 all (lab): denied by policy.toml:22 byod -> denied by policy.toml:26 byod"
        ]
    );
}

#[test]
fn protection_that_begins_or_ends_is_told_of_strangers_too() {
    let open = BEFORE.replace("services = [\"tcp/22\", \"tcp/443\"]", "services = \"tcp/22\"");
    let to = "203.0.113.10 2001:db8::10 tcp/443 (git)";
    let allowed = "allowed by policy.toml:17 git (application, 5m, siphash)";
    assert_eq!(
        told(BEFORE, &open),
        [
            format!("Gains: anyone else; anyone who is not logged in: {to}: no rule allows it -> not protected"),
            format!("Terms: alice; anyone else, in staff by login; bob: {to}: {allowed} -> not protected")
        ]
    );
}

#[test]
fn other_terms_are_told() {
    let changed = format!("{BEFORE}granularity = \"flow\"\nlifetime = \"1m\"\n");
    let told = told(BEFORE, &changed);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("Terms: alice; anyone else, in staff by login; bob: "), "{told:?}");
    assert!(told[0].ends_with("-> allowed by policy.toml:17 git (flow, 1m, siphash)"), "{told:?}");
}

#[test]
fn a_window_changes_only_the_times_outside_of_it() {
    let changed = format!("{BEFORE}when = {{ days = \"mon-fri\", hours = \"08:00-18:00\" }}\n");
    let told = told(BEFORE, &changed);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" at 2026-03-02T18:00:00Z: "), "{told:?}");
    // A change that lies in the future is found, too.
    let told = super::tests::told(BEFORE, &format!("{BEFORE}when = {{ until = 2027-05-01 }}\n"));
    assert!(told.len() == 1 && told[0].contains(" at 2027-05-02T00:00:00Z: "), "{told:?}");
}

const TABLES: &str = r#"
[[delegations]]
name = "dba"
to = ["git", "lab"]
delegates = "person:dora"
who = ["group:staff", "person:eve"]
services = "tcp/22"
lifetime_max = "1d"

[[lists]]
name = "partners"
to = "git"
who = "everyone"
"#;

/// Returns the differences of delegations and lists, each in one line.
fn tables(old: &str, new: &str) -> Vec<String> {
    let [old, new] =
        [old, new].map(|text| Policy::parse(text, 3600).unwrap_or_else(|faults| panic!("{faults}\n{text}")));
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    let words = compare_tables(&old, &new).into_iter().map(|TableChange { table, name, kind, fields }| {
        let field = |of: &FieldChange| format!("{} {} -> {}", of.field, value(&of.old), value(&of.new));
        let fields: Vec<_> = fields.iter().map(field).collect();
        format!("{table} {name} {}: {}", kind.name(), fields.join("; "))
    });
    words.collect()
}

#[test]
fn delegations_and_lists_that_mean_the_same_do_not_differ() {
    let with = format!("{BEFORE}{TABLES}");
    let other = with.replace("to = [\"git\", \"lab\"]", "to = [\"lab\", \"git\", \"git\"]");
    let other = other.replace("[\"group:staff\", \"person:eve\"]", "[\"person:eve\", \"group:staff\"]");
    assert_ne!(with, other);
    assert_eq!(tables(&with, &other), [""; 0]);
    assert_eq!(tables(&with, &other.replace("to = [\"lab\", \"git\", \"git\"]", "to = [\"la*\", \"g*\"]")), [""; 0]);
}

#[test]
fn fields_of_delegations_and_lists_that_differ_are_named() {
    let with = format!("{BEFORE}{TABLES}");
    let changed = |from: &str, to: &str| {
        let other = with.replacen(from, to, 1);
        assert_ne!(with, other, "{from}");
        tables(&with, &other)
    };
    for (from, to, said) in [
        ("\"1d\"", "\"2d\"", "delegations dba changed: lifetime_max 1d -> 2d"),
        ("\"person:dora\"", "\"person:dan\"", "delegations dba changed: delegates person:dora -> person:dan"),
        (
            "\"tcp/22\"\nlife",
            "[\"udp/53\", \"tcp/22\"]\nlife",
            "delegations dba changed: services tcp/22 -> tcp/22, udp/53",
        ),
        ("services = \"tcp/22\"\nlife", "life", "delegations dba changed: services tcp/22 -> all"),
        (
            "who = \"everyone\"",
            "who = \"tag:x\"\nsingle = true",
            "lists partners changed: single false -> true; who \
          everyone -> tag:x",
        ),
        (", \"person:eve\"]", "]", "delegations dba changed: who group:staff, person:eve -> group:staff"),
        ("\"alice\", \"bob\"]", "\"alice\"]", "delegations dba changed: members of group:staff alice, bob -> alice"),
    ] {
        assert_eq!(changed(from, to), [said], "{to}");
    }
    let renamed = changed("name = \"dba\"", "name = \"dbb\"");
    assert_eq!(renamed.len(), 2);
    assert!(renamed[0].starts_with("delegations dba removed: bind_source false -> -; "), "{renamed:?}");
    assert!(renamed[1].starts_with("delegations dbb added: bind_source - -> false; "), "{renamed:?}");
    let all = tables(BEFORE, &with);
    assert!(all.len() == 2 && all[1].starts_with("lists partners added: "), "{all:?}");
}

#[test]
fn of_a_large_group_the_members_that_differ_are_named() {
    let group = |extra: &str| {
        let members: Vec<_> = (0..30).map(|nth| format!("\"p{nth:02}\"")).collect();
        format!("{BEFORE}{TABLES}").replacen(
            "[\"alice\", \"bob\"]",
            &format!("[{}, \"{extra}\"]", members.join(", ")),
            1,
        )
    };
    let said = "delegations dba changed: members of group:staff 31 members, among them x -> 31 members, among them y";
    assert_eq!(tables(&group("x"), &group("y")), [said]);
}
