//! Parses rules' demands for packets in sealed tunnels, and receivers that are the services of tunnels.

use super::choice;
use crate::document::{Fields, Reader, hint};
use crate::model::{Compress, Sealing, Service, Treatment};
use crate::policy::{Action, GrantSuite, Policy, Receiver, Rule, Who};
use ipnet::IpNet;
use std::ops::Range;
use toml::Spanned;
use wire::packet::UDP;
use wire::seal::{Suite, Suites};

/// A rule that demands a treatment.
pub(super) struct Demand {
    /// Index of the rule among the policy's rules.
    pub rule: usize,
    /// Position of the demand in the text of the policy, in bytes.
    pub span: Range<usize>,
    /// Whether the rule's grants cover more than one protocol and port.
    pub wide: bool,
}

/// Reads the demand of a rule.
pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, suite: GrantSuite) -> Sealing {
    let value = fields.value("treatment");
    let treatments = Treatment::ALL.map(|treatment| (treatment.name(), treatment));
    let said = fields.text(reader, "treatment").and_then(|word| choice(reader, &word, &treatments));
    let compress = fields.text(reader, "compress");
    let compress = compress.and_then(|word| choice(reader, &word, &Compress::ALL.map(|c| (c.name(), c))));
    let suites = fields.value("suites").map_or(Suites::ALL, |_| read_suites(reader, fields));
    let forward_secrecy = fields.value("forward_secrecy").is_none() || fields.yes(reader, "forward_secrecy");
    let (least, most) = Sealing::REKEY_BOUNDS;
    let rekey = fields.seconds(reader, "rekey", Sealing::REKEY, least, most);
    let treatment = said.unwrap_or_default();
    if treatment == Treatment::None {
        // A word that is not a treatment has been reported as a fault already.
        for key in
            ["compress", "suites", "forward_secrecy", "rekey"].iter().filter(|_| value.is_none() || said.is_some())
        {
            if let Some(value) = fields.value(key) {
                let way_out = "set treatment = \"encrypt\" or \"authenticate\"";
                reader.fault(
                    value.span(),
                    format!("`{key}` applies in a sealed tunnel only: {way_out}, or remove `{key}`"),
                );
            }
        }
        return Sealing::NONE;
    }
    if suite == GrantSuite::Sha224
        && let Some(value) = value
    {
        let why = "tokens of suite \"sha224\" can't carry the demand for a sealed tunnel";
        reader.fault(value.span(), format!("{why}: remove `treatment`, or choose another suite"));
    }
    for (key, why) in [
        (
            "bind_source",
            "a sealed tunnel hides the sender's address: set `bind_source` in the rule that allows the tunnel instead",
        ),
        ("carrier", "in a sealed tunnel tokens always travel by tail: remove `carrier`"),
    ] {
        if let Some(value) = fields.value(key) {
            reader.fault(value.span(), why);
        }
    }
    Sealing { treatment, compress, suites, forward_secrecy, rekey }
}

fn read_suites(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Suites {
    let mut suites = Suites::default();
    for word in fields.required_texts(reader, "suites") {
        match Suite::ALL.into_iter().find(|suite| suite.name() == *word.get_ref()) {
            Some(suite) => suites = suites.with(suite),
            None => {
                let hint = hint(word.get_ref(), Suite::ALL.map(Suite::name).into_iter());
                let names = Suite::ALL.map(Suite::name).join(", ");
                let word_text = word.get_ref().escape_debug();
                reader.fault(word.span(), format!("`{word_text}` is not one of {names}{hint}"));
            }
        }
    }
    suites
}

/// Reads whether a receiver is the service of its verifier's tunnels. If it is, checks that it has one UDP port and
/// single addresses.
pub(super) fn read_tunnel(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    policy: &Policy,
    (verifier, in_network): (&Spanned<&str>, bool),
    (prefixes, services): (&[IpNet], &[Service]),
) -> bool {
    let Some(value) = fields.value("tunnel") else { return false };
    if !fields.yes(reader, "tunnel") {
        return false;
    }
    let one_port = matches!(services, [Service { protocol: UDP, first_port, last_port }] if first_port == last_port);
    let single = |prefix: &IpNet| prefix.prefix_len() == prefix.max_prefix_len();
    let of_family = |four| prefixes.iter().filter(|prefix| prefix.addr().is_ipv4() == four).count();
    let other = policy.receivers.iter().find(|other| other.tunnel && other.verifier == *verifier.get_ref());
    let fault = if in_network {
        Some("a virtual network has no tunnel: remove `tunnel`".to_owned())
    } else if !one_port {
        Some("a tunnel is one UDP port: write services = \"udp/PORT\"".to_owned())
    } else if !prefixes.iter().all(single) || of_family(true) > 1 || of_family(false) > 1 {
        Some("a tunnel has one address of each family: write one IPv4 and one IPv6 address at most".to_owned())
    } else {
        other.map(|other| format!("`{}` is the tunnel of verifier `{}` already", other.name, other.verifier))
    };
    if let Some(fault) = fault {
        reader.fault(value.span(), fault);
    }
    true
}

/// Checks that every subject with a demand for a tunnel may reach the tunnel of the receiver's verifier, and that this
/// tunnel exists.
pub(super) fn check(reader: &mut Reader<'_>, policy: &Policy, demands: &[Demand]) {
    for Demand { rule: index, span, wide } in demands {
        if reader.is_full() {
            return;
        }
        // A rule is missing from the policy if the parser gave it up because of a fault.
        let Some(rule) = policy.rules.get(*index) else { return };
        for receiver in rule.to.iter().map(|receiver| &policy.receivers[*receiver]) {
            let name = &receiver.name;
            if receiver.tunnel {
                let why = format!("`{name}` is a tunnel, and a tunnel can't travel in a tunnel");
                reader.fault(span.clone(), format!("{why}: write a rule without `treatment` for it"));
                continue;
            }
            let tunnel = policy
                .receivers
                .iter()
                .enumerate()
                .find(|(_, other)| other.tunnel && other.verifier == receiver.verifier);
            let Some((tunnel, Receiver { name: way, prefixes, .. })) = tunnel else {
                let why = format!("`{name}` is behind verifier `{}`, which has no tunnel", receiver.verifier);
                let way_out = "add a receiver with tunnel = true behind this verifier, or remove `treatment`";
                reader.fault(span.clone(), format!("{why}: {way_out}"));
                continue;
            };
            if *wide && prefixes.iter().any(|address| receiver.prefixes.iter().any(|around| around.contains(address))) {
                let why = format!(
                    "a grant for all of `{name}` would include the tunnel `{way}`, which can't travel in a tunnel"
                );
                reader.fault(span.clone(), format!("{why}: use granularity = \"application\""));
            }
            if let Some(who) = rule.who.iter().find(|who| !may_reach(policy, who, tunnel)) {
                let why =
                    format!("{who} must send to `{name}` through the tunnel `{way}`, but no rule lets them reach it");
                reader.fault(span.clone(), format!("{why}: add a rule that allows {who} to reach `{way}`"));
            }
        }
    }
}

/// Reports whether some rule lets these subjects reach a tunnel, at some time.
fn may_reach(policy: &Policy, who: &Who, tunnel: usize) -> bool {
    let leads = |rule: &&Rule| rule.action == Action::Allow && rule.to.contains(&tunnel);
    policy.rules.iter().filter(leads).flat_map(|rule| &rule.who).any(|named| match (named, who) {
        (Who::Everyone, _) => true,
        (Who::Group(group), Who::Person(person)) => {
            named == who || policy.groups.get(group).is_some_and(|members| members.contains(person))
        }
        (Who::Address(around), Who::Address(prefix)) => around.contains(prefix),
        _ => named == who,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::diff::compare;
    use crate::policy::{Compiled, Decision, Request, Subject};
    use wire::Destination;

    const NOW: u64 = 1_800_000_000;
    const RECEIVERS: &str = r#"
[groups]
staff = ["alice", "bob"]

[[receivers]]
name = "printers"
address = "203.0.113.0/28"
services = "tcp/9100"
verifier = "edge"

[[receivers]]
name = "way"
address = ["203.0.113.1", "2001:db8::1"]
services = "udp/4499"
verifier = "edge"
tunnel = true

[[rules]]
name = "way"
action = "allow"
who = "group:staff"
to = "way"
"#;

    fn text(terms: &str) -> String {
        let rule = "[[rules]]\nname = \"print\"\naction = \"allow\"\nwho = \"group:staff\"\nto = \"printers\"\n";
        format!("{RECEIVERS}\n{rule}{terms}\n")
    }

    fn sealing(terms: &str) -> Sealing {
        let policy = Policy::parse(&text(terms), 3600).unwrap_or_else(|faults| panic!("{faults}"));
        policy.rules()[1].terms.sealing
    }

    /// Returns the faults of a policy whose rule has these terms; the rule's first term is on line 29.
    fn faults(terms: &str) -> String {
        Policy::parse(&text(terms), 3600).expect_err("a fault").to_string()
    }

    fn to(address: &str, protocol: u8, port: u16) -> Destination {
        Destination { address: address.parse().unwrap(), protocol, port }
    }

    #[test]
    fn a_rule_says_what_it_demands() {
        assert_eq!(sealing(""), Sealing::NONE);
        assert_eq!(sealing("treatment = \"none\""), Sealing::NONE);
        let plain = sealing("treatment = \"encrypt\"");
        assert_eq!(plain, Sealing { treatment: Treatment::Encrypt, ..Sealing::NONE });
        assert!(plain.forward_secrecy);
        let all = sealing(
            "treatment = \"authenticate\"\ncompress = \"auto\"\nsuites = [\"aes-256-gcm\", \"chacha20-poly1305\"]\n\
             forward_secrecy = false\nrekey = \"10m\"",
        );
        let suites = Suites::default().with(Suite::Aes256Gcm).with(Suite::ChaCha20Poly1305);
        let (treatment, compress) = (Treatment::Authenticate, Some(Compress::Auto));
        assert_eq!(all, Sealing { treatment, compress, suites, forward_secrecy: false, rekey: 600 });
    }

    #[test]
    fn faults_have_their_place_and_the_way_out() {
        for (terms, place, fault) in [
            ("treatment = \"encrypted\"", "29:13", "`encrypted` is not one of none, authenticate, encrypt"),
            ("treatment = \"encrypt\"\ncompress = true", "30:12", "expected a string"),
            ("treatment = \"encrypt\"\ncompress = \"lz4\"", "30:12", "`lz4` is not one of never, auto, always"),
            ("compress = \"auto\"", "29:12", "set treatment = \"encrypt\""),
            ("treatment = \"none\"\nrekey = \"1m\"", "30:9", "`rekey` applies in a sealed tunnel only"),
            ("treatment = \"encrypt\"\nsuites = \"aes-265-gcm\"", "30:10", "did you mean `aes-256-gcm`"),
            ("treatment = \"encrypt\"\nsuites = []", "30:10", "`suites` is empty"),
            ("treatment = \"encrypt\"\nrekey = \"1s\"", "30:9", "`rekey` must be from 10s to 1h"),
            ("treatment = \"encrypt\"\nforward_secrecy = \"yes\"", "30:19", "must be true or false"),
            ("treatment = \"encrypt\"\nbind_source = true", "30:15", "hides the sender's address"),
            ("treatment = \"encrypt\"\ncarrier = \"shim\"", "30:11", "tokens always travel by tail"),
            ("tratment = \"encrypt\"", "29:1", "did you mean `treatment`"),
        ] {
            let faults = faults(terms);
            assert!(faults.contains(&format!("{place}: ")) && faults.contains(fault), "{terms}: {faults}");
            assert_eq!(faults.lines().count(), 1, "{terms}: {faults}");
        }
        let pair = faults("suite = \"sha224\"\ntreatment = \"encrypt\"");
        assert!(pair.contains("can't carry the demand for a sealed tunnel"), "{pair}");
    }

    #[test]
    fn a_rule_that_denies_demands_nothing() {
        let denies =
            text("treatment = \"encrypt\"").replacen("name = \"print\"\naction = \"allow\"", "action = \"deny\"", 1);
        let faults = Policy::parse(&denies, 3600).expect_err("a fault").to_string();
        assert!(faults.contains("a rule with action deny issues no grant: remove `treatment`"), "{faults}");
    }

    #[test]
    fn a_demand_without_a_tunnel_that_can_be_reached_is_a_fault() {
        let encrypt = text("treatment = \"encrypt\"");
        let changed = |from: &str, to: &str| {
            assert!(encrypt.contains(from), "{from}");
            Policy::parse(&encrypt.replacen(from, to, 1), 3600).expect_err("a fault").to_string()
        };
        let none = changed("tunnel = true\n", "");
        assert!(none.contains(": `printers` is behind verifier `edge`, which has no tunnel: add a receiver"), "{none}");
        let elsewhere = changed("verifier = \"edge\"\ntunnel", "verifier = \"other\"\ntunnel");
        assert!(elsewhere.contains("`printers` is behind verifier `edge`, which has no tunnel"), "{elsewhere}");
        let closed = changed("who = \"group:staff\"\nto = \"way\"", "who = \"person:alice\"\nto = \"way\"");
        assert!(closed.contains("group:staff must send to `printers` through the tunnel `way`"), "{closed}");
        let itself = changed("to = \"printers\"", "to = [\"printers\", \"way\"]");
        assert!(itself.contains("`way` is a tunnel, and a tunnel can't travel in a tunnel"), "{itself}");
        for person in ["person:alice", "group:staff"] {
            let named = encrypt.replacen(
                "who = \"group:staff\"\nto = \"printers\"",
                &format!("who = \"{person}\"\nto = \"printers\""),
                1,
            );
            assert!(Policy::parse(&named, 3600).is_ok(), "{person} is in the group that may reach the tunnel");
        }
        let other = encrypt.replacen(
            "who = \"group:staff\"\nto = \"printers\"",
            "who = \"person:carol\"\nto = \"printers\"",
            1,
        );
        assert!(Policy::parse(&other, 3600).is_err());
    }

    #[test]
    fn a_tunnel_is_one_udp_port_of_single_addresses() {
        let base = text("treatment = \"encrypt\"");
        for (from, to, fault) in [
            ("udp/4499", "tcp/4499", "a tunnel is one UDP port"),
            ("udp/4499", "udp/4499-4500", "a tunnel is one UDP port"),
            ("[\"203.0.113.1\", \"2001:db8::1\"]", "\"203.0.113.0/30\"", "one address of each family"),
            ("[\"203.0.113.1\", \"2001:db8::1\"]", "[\"203.0.113.1\", \"203.0.113.2\"]", "one address of each family"),
            ("tunnel = true", "tunnel = \"yes\"", "`tunnel` must be true or false"),
        ] {
            let faults = Policy::parse(&base.replacen(from, to, 1), 3600).expect_err("a fault").to_string();
            assert!(faults.contains(fault), "{faults}");
        }
        let second = "\n[[receivers]]\nname = \"second\"\naddress = \"203.0.113.2\"\nservices = \"udp/4499\"\nverifier = \"edge\"\ntunnel = true\n";
        let faults = Policy::parse(&format!("{base}{second}"), 3600).expect_err("a fault").to_string();
        assert!(faults.contains("`way` is the tunnel of verifier `edge` already"), "{faults}");
    }

    #[test]
    fn a_tunnel_is_in_no_tunnel() {
        let around = "\n[[receivers]]\nname = \"host\"\naddress = \"203.0.113.1\"\nservices = \"all\"\nverifier = \"edge\"\n\
                      [[rules]]\naction = \"allow\"\nwho = \"everyone\"\nto = \"host\"\npriority = 500\ntreatment = \
                      \"encrypt\"\n";
        let wide = format!("{}{around}granularity = \"host\"\n", text(""));
        let open = wide.replace("who = \"group:staff\"\nto = \"way\"", "who = \"everyone\"\nto = \"way\"");
        let faults = Policy::parse(&open, 3600).expect_err("a fault").to_string();
        assert!(faults.contains("a grant for all of `host` would include the tunnel `way`"), "{faults}");
        let narrow = open.replace("granularity = \"host\"\n", "");
        let policy = Compiled::new(Policy::parse(&narrow, 3600).unwrap_or_else(|faults| panic!("{faults}"))).unwrap();
        let terms = |to: Destination| {
            let request = Request { subject: Subject::person("alice"), to, now: NOW };
            let Decision::Allowed(permit) = policy.decide(&request) else { panic!("denied") };
            permit.terms.sealing.treatment
        };
        assert_eq!(terms(to("203.0.113.1", 17, 4499)), Treatment::None, "the tunnel's own service");
        assert_eq!(terms(to("203.0.113.1", 17, 4498)), Treatment::Encrypt);
        let ends = policy.policy().tunnels_of("edge");
        assert_eq!(ends, ["203.0.113.1:4499".parse().unwrap(), "[2001:db8::1]:4499".parse().unwrap()]);
        assert!(policy.policy().tunnels_of("other").is_empty());
    }

    #[test]
    fn a_test_of_the_policy_states_the_treatment() {
        let tested = |words: &str| {
            let test = format!("[[tests]]\nwho = \"person:alice\"\nto = \"203.0.113.3 tcp/9100\"\n{words}\n");
            Policy::parse(&format!("{}{test}", text("treatment = \"encrypt\"")), 3600)
        };
        let failures = |words: &str| Compiled::new(tested(words).unwrap()).unwrap().failures();
        assert!(failures("expect = \"allow\"\ntreatment = \"encrypt\"").is_empty());
        assert!(failures("expect = \"allow\"").is_empty());
        let failed = failures("expect = \"allow\"\ntreatment = \"none\"");
        assert!(failed[0].message.starts_with("expected allow with treatment none, but"), "{failed:?}");
        assert!(failed[0].message.ends_with("with treatment encrypt"), "{failed:?}");
        let fault = tested("expect = \"deny\"\ntreatment = \"encrypt\"").expect_err("a fault").to_string();
        assert!(fault.contains("only an allowed request has a treatment"), "{fault}");
    }

    #[test]
    fn what_is_closed_now_but_sealed_at_other_times_is_known() {
        let windowed = text("treatment = \"encrypt\"\nwhen = { until = 2026-12-31 }");
        let policy = Policy::parse(&windowed, 3600).unwrap();
        let names = |subject: &str, now| -> Vec<String> {
            let subject = Subject::person(subject);
            policy.closed(&subject, now).into_iter().map(|receiver| receiver.name.clone()).collect()
        };
        let [before, after] = [1_700_000_000, NOW];
        assert_eq!((names("alice", before), names("alice", after)), (vec![], vec!["printers".to_owned()]));
        assert_eq!(names("carol", after), Vec::<String>::new(), "no rule is about her");
        let denied = text("treatment = \"encrypt\"")
            + "\n[[rules]]\naction = \"deny\"\nwho = \"person:bob\"\nto = \"printers\"\n";
        let policy = Policy::parse(&denied, 3600).unwrap();
        let closed = |who| policy.closed(&Subject::person(who), NOW).len();
        assert_eq!((closed("bob"), closed("alice")), (1, 0));
    }

    #[test]
    fn what_is_demanded_is_explained_and_compared() {
        let [none, weak, strong] = ["", "treatment = \"authenticate\"", "treatment = \"encrypt\"\nrekey = \"5m\""]
            .map(|terms| Policy::parse(&text(terms), 3600).unwrap());
        let compiled = Compiled::new(strong.clone()).unwrap();
        let request = Request { subject: Subject::person("alice"), to: to("203.0.113.3", 6, 9100), now: NOW };
        let trace = compiled.trace(&request);
        let grant = trace.grant.unwrap();
        assert!(grant.contains("in a sealed tunnel: encrypt, rekey 5m"), "{grant}");
        for (old, new, words) in [(&none, &weak, "authenticate"), (&weak, &strong, "encrypt, rekey 5m")] {
            let changes = compare(old, new, NOW).unwrap();
            assert_eq!(changes.len(), 1, "{changes:?}");
            assert!(changes[0].new.contains(words), "{changes:?}");
        }
        assert!(compare(&strong, &strong, NOW).unwrap().is_empty());
        let printers = &strong.receivers()[0];
        let subject = Subject::person("alice");
        assert_eq!(strong.demanded(printers, &subject, NOW), Treatment::Encrypt);
        assert_eq!(strong.demanded(&strong.receivers()[1], &subject, NOW), Treatment::None);
        assert_eq!(none.demanded(printers, &subject, NOW), Treatment::None);
        assert_eq!(strong.demanded(printers, &Subject::person("carol"), NOW), Treatment::None);
    }
}
