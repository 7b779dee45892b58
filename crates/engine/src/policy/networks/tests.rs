use super::*;

const TEXT: &str = r#"
authority = "198.51.100.1"

[[networks]]
name = "blue"
vni = 100

[[networks]]
name = "red"
vni = 101

[[places]]
network = "blue"
address = "10.0.0.0/24"
endpoint = "192.0.2.1"
interface = 1

[[places]]
network = "blue"
address = ["10.0.0.7", "fd00::7"]
endpoint = "192.0.2.2"
interface = 2

[[places]]
network = "red"
address = "10.0.0.7"
endpoint = "192.0.2.1"
interface = 3

[[paths]]
to = "192.0.2.1"
verifiers = "tep-1"

[[paths]]
to = "192.0.2.1"
from = "192.0.2.128/25"
verifiers = ["edge", "tep-1"]
suite = "siphash"
"#;

fn faults(text: &str) -> String {
    Networks::parse(text).unwrap_err().to_string()
}

#[test]
fn an_address_is_where_its_longest_prefix_is_in_each_network() {
    let networks = Networks::parse(TEXT).unwrap();
    let [blue, red] = ["blue", "red"].map(|name| networks.vni(name).unwrap());
    let at = |vni, address: &str| networks.place(vni, address.parse().unwrap()).map(|place| place.interface.0);
    assert_eq!(at(blue, "10.0.0.1"), Some(1));
    assert_eq!((at(blue, "10.0.0.7"), at(red, "10.0.0.7")), (Some(2), Some(3)));
    assert_eq!((at(blue, "fd00::7"), at(red, "fd00::7"), at(red, "10.0.0.1")), (Some(2), None, None));
    assert_eq!((networks.name(blue), networks.name(Vni::new(7).unwrap())), (Some("blue"), None));
}

#[test]
fn a_place_says_who_may_ask_for_it() {
    let asked_by = |names: &str| TEXT.replacen("interface = 2", &format!("interface = 2\nasked_by = {names}"), 1);
    let networks = Networks::parse(&asked_by(r#"["group:hosts", "person:tep-2", "tag:rack"]"#)).unwrap();
    let blue = networks.vni("blue").unwrap();
    let who = |address: &str| networks.located(blue, address.parse().unwrap()).unwrap().asked_by.clone();
    let [group, person, tag] = ["hosts", "tep-2", "rack"].map(str::to_owned);
    assert_eq!(who("10.0.0.7"), Some(vec![Who::Group(group), Who::Person(person), Who::Tag(tag)]));
    assert_eq!((who("10.0.0.1"), networks.groups().len()), (None, 1));
    for wrong in ["\"everyone\"", "\"hosts\"", "\"group:a b\"", "[\"address:10.0.0.7\"]"] {
        assert!(faults(&asked_by(wrong)).contains("is not one of \"person:NAME\""), "{wrong}");
    }
    assert!(["7", "[]"].iter().all(|wrong| Networks::parse(&asked_by(wrong)).is_err()));
}

#[test]
fn a_verifier_sees_the_places_behind_its_own_endpoints_and_no_others() {
    let networks = Networks::parse(TEXT).unwrap();
    let behind = |verifier: &str| {
        let endpoints = networks.endpoints_of(verifier);
        let places = networks.places_behind(&endpoints).into_iter();
        let shown = |(vni, prefix, located): (Vni, IpNet, Option<&Located>)| {
            let name = networks.name(vni).unwrap();
            format!("{name} {prefix} {:?}", located.map(|located| located.place.interface.0))
        };
        (endpoints.len(), places.map(shown).collect::<Vec<_>>())
    };
    let own = ["blue 10.0.0.0/24 Some(1)", "blue 10.0.0.7/32 None", "red 10.0.0.7/32 Some(3)"];
    assert_eq!(behind("tep-1"), (1, own.map(str::to_owned).to_vec()));
    assert_eq!(behind("edge"), (0, vec![]), "it stands before another verifier");
    assert_eq!(behind("tep-2"), (0, vec![]));
}

#[test]
fn a_path_depends_on_both_endpoints() {
    let networks = Networks::parse(TEXT).unwrap();
    let path = |from: &str, to: &str| networks.path(from.parse().unwrap(), to.parse().unwrap());
    let near = path("192.0.2.2", "192.0.2.1").unwrap();
    assert_eq!((near.verifiers.join(" "), near.suite), ("tep-1".into(), Suite::AesCmac));
    let far = path("192.0.2.200", "192.0.2.1").unwrap();
    assert_eq!((far.verifiers.join(" "), far.suite), ("edge tep-1".into(), Suite::Siphash));
    assert_eq!((path("192.0.2.1", "192.0.2.2"), path("2001:db8::1", "192.0.2.1")), (None, None));
    assert_eq!(networks.verifiers().into_iter().collect::<Vec<_>>(), ["edge", "tep-1"]);
}

const FIXED: &str = r#"
[[paths]]
to = ["2001:db8:3::1", "2001:db8:4::1"]
verifiers = ["edge", "aside", "tep-1"]
fixed = true
hops = ["2001:db8:a::1", "2001:db8:b::1"]
"#;

#[test]
fn a_fixed_path_leads_through_its_hops_to_each_endpoint() {
    let networks = Networks::parse(&format!("{TEXT}{FIXED}")).unwrap();
    let hops = |to: &str| &networks.path("2001:db8::1".parse().unwrap(), to.parse().unwrap()).unwrap().hops;
    let expected = |last: &str| ["2001:db8:a::1", "2001:db8:b::1", last].map(|hop| hop.parse::<Ipv6Addr>().unwrap());
    assert_eq!(hops("2001:db8:3::1"), &expected("2001:db8:3::1"));
    assert_eq!(hops("2001:db8:4::1"), &expected("2001:db8:4::1"));
    let plain = networks.path("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap()).unwrap();
    assert!(plain.hops.is_empty());
}

#[test]
fn hops_that_lead_nowhere_are_told() {
    let wrong = |from: &str, to: &str| faults(&format!("{TEXT}{}", FIXED.replace(from, to)));
    assert!(wrong(", \"2001:db8:b::1\"]", "]").contains("(hops: 1, verifiers: 3)"));
    assert!(wrong("db8:b::1", "db8:a::1").contains("a hop of this path already"));
    assert!(wrong("db8:b::1", "db8:3::1").contains("one of its hops"));
    assert!(wrong("2001:db8:b::1", "192.0.2.1").contains("not an IPv6 address"));
    assert!(wrong("\"2001:db8:4::1\"", "\"192.0.2.9\"").contains("IPv6 endpoints only"));
    assert!(wrong("fixed = true", "").contains("requires `fixed = true`"));
}

const ALTERNATIVES: &str = r#"
[[paths.alternatives]]
verifiers = ["other", "tep-1"]
hops = "2001:db8:c::1"

[[paths.alternatives]]
verifiers = ["edge", "other", "tep-1"]
hops = ["2001:db8:a::1", "2001:db8:c::1"]
"#;

#[test]
fn alternatives_to_a_path_have_numbers_in_their_order() {
    let networks = Networks::parse(&format!("{TEXT}{FIXED}{ALTERNATIVES}")).unwrap();
    let paths = |to: &str| networks.paths("2001:db8::1".parse().unwrap(), to.parse().unwrap());
    for to in ["2001:db8:3::1", "2001:db8:4::1"] {
        let verifiers: Vec<_> = paths(to).iter().map(|path| path.verifiers.join(" ")).collect();
        assert_eq!(verifiers, ["edge aside tep-1", "other tep-1", "edge other tep-1"]);
        let last: Vec<_> = paths(to).iter().map(|path| path.hops.last().unwrap().to_string()).collect();
        assert_eq!(last, [to; 3]);
    }
    assert_eq!((networks.counts()[2], networks.verifiers().contains("other")), ((8, "path"), true));
    assert_eq!(networks.endpoints_of("other").len(), 0, "it stands before another verifier");
    let plain = networks.paths("192.0.2.200".parse().unwrap(), "192.0.2.1".parse().unwrap());
    assert_eq!((plain.len(), paths("2001:db8:5::1").len()), (1, 0));
}

#[test]
fn alternatives_that_are_none_are_told() {
    let wrong = |from: &str, to: &str| {
        assert!(ALTERNATIVES.contains(from));
        faults(&format!("{TEXT}{FIXED}{}", ALTERNATIVES.replace(from, to)))
    };
    assert!(wrong("hops = \"2001:db8:c::1\"", "").contains("(hops: 0, verifiers: 2)"));
    let itself = "verifiers = [\"edge\", \"aside\", \"tep-1\"]\nhops = [\"2001:db8:a::1\", \"2001:db8:b::1\"]";
    let other = "verifiers = [\"other\", \"tep-1\"]\nhops = \"2001:db8:c::1\"";
    assert!(wrong(other, itself).contains("the path itself"));
    assert!(wrong(other, &format!("to = \"2001:db8:3::1\"\n{other}")).contains("unknown key `to`"));
    let more = |number: u8| format!("[[paths.alternatives]]\nverifiers = \"tep-{number}\"\nhops = []\n");
    let five = format!("{TEXT}{FIXED}{ALTERNATIVES}{}{}", more(1), more(2));
    assert!(faults(&five).contains("up to 3 alternatives: found 4"));
    assert!(faults(&format!("{TEXT}alternatives = 1\n")).contains("[[paths.alternatives]]"));
    assert!(
        faults(&format!("{TEXT}[[paths.alternatives]]\nverifiers = \"other\"\nhops = \"::1\""))
            .contains("fixed = true")
    );
}

#[test]
fn no_file_is_no_network() {
    assert_eq!(Networks::parse("").unwrap(), Networks::default());
}

#[test]
fn what_is_wrong_is_told_with_the_way_out() {
    assert!(faults(&TEXT.replace("authority = \"198.51.100.1\"", "")).contains("missing key `authority`"));
    assert!(faults(&TEXT.replace("network = \"red\"", "network = \"rad\"")).contains("did you mean `red`?"));
    assert!(faults(&TEXT.replace("vni = 101", "vni = 100")).contains("has the same number"));
    assert!(faults(&TEXT.replace("vni = 101", "vni = 16777216")).contains("vni"));
    assert!(faults(&TEXT.replace("10.0.0.0/24", "10.0.0.7")).contains("already has an endpoint"));
    assert!(faults(&TEXT.replace("from = \"192.0.2.128/25\"", "")).contains("already"));
    assert!(faults(&TEXT.replace("192.0.2.128/25", "2001:db8::/32")).contains("two address families"));
    assert!(faults(&TEXT.replace("\"edge\", ", "\"tep-1\", ")).contains("on this path already"));
    assert!(faults(&TEXT.replace("[\"edge\", \"tep-1\"]", "[]")).contains("1 to 5 verifiers"));
    assert!(faults(&TEXT.replace("\"siphash\"", "\"sha224\"")).contains("aes-cmac or siphash"));
}
