use super::*;
use hickory_proto::op::Query;

const FILE: &str = "\
@       3600 IN SOA ns.example.org. admin.example.org. 1 7200 900 1209600 120
@       3600 IN NS  ns.example.org.
@       3600 IN TXT \"v=spf1 -all\"
ns      3600 IN A   198.51.100.53
git     60   IN A   203.0.113.10
git     60   IN AAAA 2001:db8::10
www     60   IN A   198.51.100.80
code    60   IN CNAME git
out     60   IN CNAME www.example.net.
loop    60   IN CNAME loop
deep.er 60   IN A   203.0.113.11
*.any   60   IN A   203.0.113.12
lab     60   IN NS  ns.lab
ns.lab  60   IN A   198.51.100.54
";
const TEXT: &str = "v=vouchsafe1; authority=https://vouch.example.org; protects=203.0.113.0/24,2001:db8::/32";

fn record(text: &str) -> Discovery {
    Discovery::read(text.as_bytes()).unwrap().unwrap()
}

fn zone() -> Zone {
    Zone::read(FILE, &"example.org".parse().unwrap(), record(TEXT), 300).unwrap()
}

fn question(name: &str, kind: RecordType, size: Option<u16>) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if let Some(size) = size {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message
}

fn ask(name: &str, kind: RecordType) -> Message {
    let bytes = question(name, kind, Some(1232)).to_vec().unwrap();
    let answer = Message::from_vec(&zone().answer(&bytes, Transport::Udp).unwrap()).unwrap();
    assert_eq!(answer.metadata.id, 7);
    answer
}

fn texts(records: &[Record]) -> Vec<String> {
    let text = |record: &Record| match &record.data {
        RData::TXT(text) => Some(String::from_utf8(text.txt_data.concat()).unwrap()),
        _ => None,
    };
    records.iter().filter_map(text).collect()
}

#[test]
fn the_record_comes_beside_an_address_that_is_protected_and_no_other() {
    for (name, kind) in [
        ("git.example.org.", RecordType::A),
        ("GIT.Example.ORG.", RecordType::AAAA),
        ("code.example.org.", RecordType::A),
        ("x.any.example.org.", RecordType::A),
    ] {
        let answer = ask(name, kind);
        assert!(answer.metadata.authoritative && !answer.answers.is_empty(), "{name}");
        assert_eq!(texts(&answer.additionals), [TEXT], "{name}");
        assert_eq!(answer.additionals[0].name.to_ascii(), "example.org.");
    }
    assert!(ask("www.example.org.", RecordType::A).additionals.is_empty());
    assert!(ask("git.example.org.", RecordType::MX).additionals.is_empty());
}

#[test]
fn what_is_answered_is_what_an_agent_overhears() {
    let bytes = question("git.example.org.", RecordType::A, Some(1232)).to_vec().unwrap();
    let overheard = engine::discovery::message::overhear(&zone().answer(&bytes, Transport::Udp).unwrap()).unwrap();
    assert_eq!((overheard.domain.as_str(), overheard.record), ("example.org", record(TEXT)));
}

#[test]
fn the_record_is_at_the_domain_and_below_it() {
    assert_eq!(texts(&ask("_vouchsafe.example.org.", RecordType::TXT).answers), [TEXT]);
    let mut apex = texts(&ask("example.org.", RecordType::TXT).answers);
    apex.sort();
    assert_eq!(apex, ["v=spf1 -all", TEXT]);
}

#[test]
fn servers_of_the_authority_are_answered_as_a_client_reads_them() {
    let domain = "example.org".parse().unwrap();
    let listed: Vec<_> = ["https://a.example.org:8443", "https://b.example.org"]
        .iter()
        .filter_map(|url| engine::discovery::Server::of(&url.parse().unwrap()))
        .collect();
    let lines = engine::discovery::servers::zone_lines(&domain, &listed, 300);
    let zone = Zone::read(&format!("{FILE}\n{lines}"), &domain, record(TEXT), 300).unwrap();
    let question = engine::discovery::message::servers_question(&domain, 9).unwrap();
    let answer = zone.answer(&question, Transport::Udp).unwrap();
    let mut found = match engine::discovery::message::servers_answer(&domain, 9, &answer) {
        Some(engine::discovery::Answer::Record(found, 300)) => found,
        other => panic!("{other:?}"),
    };
    found.sort_by_key(|server| server.host.clone());
    assert_eq!(found, listed);
}

#[test]
fn what_is_not_there_is_denied_for_as_long_as_the_soa_says() {
    for (name, kind, code) in [
        ("nothing.example.org.", RecordType::A, ResponseCode::NXDomain),
        ("git.example.org.", RecordType::MX, ResponseCode::NoError),
        ("er.example.org.", RecordType::A, ResponseCode::NoError),
    ] {
        let answer = ask(name, kind);
        assert_eq!((answer.metadata.response_code, answer.answers.len()), (code, 0), "{name}");
        assert_eq!((answer.authorities[0].record_type(), answer.authorities[0].ttl), (RecordType::SOA, 120), "{name}");
    }
}

#[test]
fn others_names_are_refused_and_what_was_given_away_is_referred() {
    for name in ["example.net.", "org.", "badexample.org."] {
        assert_eq!(ask(name, RecordType::A).metadata.response_code, ResponseCode::Refused, "{name}");
    }
    assert_eq!(ask("example.org.", RecordType::AXFR).metadata.response_code, ResponseCode::Refused);
    let referral = ask("host.lab.example.org.", RecordType::A);
    assert!(!referral.metadata.authoritative && referral.answers.is_empty());
    assert_eq!(referral.authorities[0].record_type(), RecordType::NS);
    assert_eq!(referral.additionals[0].data.ip_addr(), Some([198, 51, 100, 54].into()));
}

#[test]
fn aliases_lead_out_of_the_zone_and_not_round_and_round() {
    assert_eq!(ask("out.example.org.", RecordType::A).answers.len(), 1);
    assert!(ask("loop.example.org.", RecordType::A).answers.len() <= ALIASES);
    assert_eq!(ask("code.example.org.", RecordType::CNAME).answers.len(), 1);
}

#[test]
fn everything_at_once_is_one_small_record() {
    let answer = ask("example.org.", RecordType::ANY);
    assert_eq!((answer.answers.len(), answer.answers[0].record_type()), (1, RecordType::HINFO));
}

#[test]
fn a_long_answer_loses_the_record_first_and_is_then_cut() {
    let many: String = (0..40).map(|n| format!("many 60 IN A 203.0.113.{n}\n")).collect();
    let few: String = (0..24).map(|n| format!("few 60 IN A 203.0.113.{n}\n")).collect();
    let zone = Zone::read(&format!("{FILE}{many}{few}"), &"example.org".parse().unwrap(), record(TEXT), 300).unwrap();
    let ask = |name: &str, size, transport| {
        let bytes = zone.answer(&question(name, RecordType::A, size).to_vec().unwrap(), transport).unwrap();
        (bytes.len(), Message::from_vec(&bytes).unwrap())
    };
    let (length, answer) = ask("few.example.org.", None, Transport::Udp);
    assert!(length <= 512 && answer.answers.len() == 24 && answer.additionals.is_empty(), "{length}");
    let (length, answer) = ask("many.example.org.", None, Transport::Udp);
    assert!(length <= 512 && answer.metadata.truncation && answer.answers.is_empty(), "{length}");
    // A client that advertises a larger size gets more, but never more than fits in one packet.
    let (length, answer) = ask("many.example.org.", Some(65_535), Transport::Udp);
    assert!(length <= 1232 && answer.answers.len() == 40, "{length}");
    let (_, answer) = ask("many.example.org.", None, Transport::Tcp);
    assert_eq!((answer.answers.len(), answer.additionals.len()), (40, 1));
}

#[test]
fn what_is_no_question_gets_no_more_than_it_sent() {
    let zone = zone();
    let question = question("git.example.org.", RecordType::A, None).to_vec().unwrap();
    for length in 0..question.len() {
        let answer = zone.answer(&question[..length], Transport::Udp).unwrap_or_default();
        assert!(answer.len() <= length.min(HEADER), "{length}");
    }
    let mut answer = question.clone();
    answer[2] |= 0x80;
    assert_eq!(zone.answer(&answer, Transport::Udp), None, "two servers would talk for ever");
    let short = shortened(&question).unwrap();
    assert!(short.len() <= question.len() && Message::from_vec(&short).unwrap().metadata.truncation);
    let update = [&question[..2], &[0x28], &question[3..]].concat();
    let refused = Message::from_vec(&zone.answer(&update, Transport::Udp).unwrap()).unwrap();
    assert_eq!(refused.metadata.response_code, ResponseCode::NotImp);
}

#[test]
fn a_zone_that_cannot_be_served_is_refused_with_the_reason() {
    let read = |file: &str| {
        Zone::read(file, &"example.org".parse().unwrap(), record(TEXT), 300).err().map(|why| format!("{why:#}"))
    };
    let soa = "@ 3600 IN SOA ns.example.org. admin.example.org. 1 7200 900 1209600 120\n@ 60 IN NS ns\n";
    assert_eq!(read(soa), None);
    for (file, why) in [
        ("", "no records of the domain"),
        ("@ 60 IN NS ns\n", "no SOA"),
        (&soa.replace("@ 60 IN NS ns\n", ""), "no NS"),
        (&format!("{soa}www.example.net. 60 IN A 192.0.2.1\n"), "is outside of the domain"),
        (&format!("{soa}@ 60 IN TXT \"v=vouchsafe1; authority=https://a.org\"\n"), "remove this record"),
        (&format!("{soa}a 60 IN CNAME b\na 60 IN A 192.0.2.1\n"), "no other records"),
        (&format!("{soa}a 60 IN A not-an-address\n"), "malformed"),
    ] {
        let said = read(file).unwrap_or_default();
        assert!(said.contains(why), "{file:?}: {said}");
    }
}
