//! The DNS messages that discovery needs: queries for a domain's record and for the servers of an authority, and the
//! answers to these queries. This module also finds records that name servers add to answers to other queries. An
//! attacker can control everything that this module reads.

use super::domain::{Domain, LABEL};
use super::record::Record;
use super::servers::Server;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record as Entry, RecordType};
use std::collections::BTreeSet;
use wire::packet::{Form, Fragment, Packet, UDP};

/// The port from which name servers answer.
pub const DNS_PORT: u16 = 53;
/// Longest DNS answer that the agent accepts, in bytes.
pub const LONGEST: usize = 16 * 1024;
/// Longest answer requested by UDP, in bytes: it fits in one packet on every path.
const UDP_PAYLOAD: u16 = 1232;
/// Maximum number of aliases that are followed.
const ALIASES: usize = 8;

/// An overheard record, from the answer to another program's query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overheard {
    /// The domain to which the record claims to belong.
    pub domain: Domain,
    /// The overheard record.
    pub record: Record,
    /// Seconds for which the cache is allowed to keep the record.
    pub ttl: u32,
}

/// Content of the answer to one of the agent's own queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<R = Record> {
    /// The domain has this record. The cache is allowed to keep the record for this number of seconds.
    Record(R, u32),
    /// The domain has no record. The cache is allowed to keep this result for this number of seconds.
    Nothing(u32),
    /// The answer did not fit into a datagram. The caller has to send the query by TCP.
    Truncated,
    /// There is no usable answer. The text is the reason.
    Failed(String),
}

/// Builds the query with this id for a domain's record. Returns `None` if the DNS library can't encode the query.
pub fn question(domain: &Domain, id: u16) -> Option<Vec<u8>> {
    query(&domain.record_name(), RecordType::TXT, id)
}

/// Builds the query with this id for the servers of the authority that has the name `authority`. Returns `None` if the
/// DNS library can't encode the query.
pub fn servers_question(authority: &Domain, id: u16) -> Option<Vec<u8>> {
    query(&authority.service_name(), RecordType::SRV, id)
}

fn query(name: &str, kind: RecordType, id: u16) -> Option<Vec<u8>> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(format!("{name}.")).ok()?, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    message.set_edns(edns);
    message.to_vec().ok()
}

/// Reads the answer to the query that [`question`] built for this domain and id. Returns `None` if `bytes` are no
/// answer to this query.
pub fn answer(domain: &Domain, id: u16, bytes: &[u8]) -> Option<Answer> {
    answer_to(&domain.record_name(), RecordType::TXT, (id, bytes), |entries| the_record(entries.iter().copied()))
}

/// Reads the answer to the query that [`servers_question`] built for this name and id. Returns `None` if `bytes` are no
/// answer to this query.
pub fn servers_answer(authority: &Domain, id: u16, bytes: &[u8]) -> Option<Answer<Vec<Server>>> {
    answer_to(&authority.service_name(), RecordType::SRV, (id, bytes), the_servers)
}

/// Reads the answer to the query with this name, type and id. `find` finds the result among the records of the name.
fn answer_to<R>(
    name: &str,
    kind: RecordType,
    (id, bytes): (u16, &[u8]),
    find: impl FnOnce(&[&Entry]) -> Result<Option<(R, u32)>, String>,
) -> Option<Answer<R>> {
    let message = read(bytes)?;
    let query = message.queries.first()?;
    let name = Name::from_ascii(format!("{name}.")).ok()?;
    let ours = message.metadata.id == id && query.name == name;
    if !ours || query.query_type != kind || query.query_class != DNSClass::IN {
        return None;
    }
    if message.metadata.truncation {
        return Some(Answer::Truncated);
    }
    let nothing = || {
        let soa = message.authorities.iter().find_map(|entry| match &entry.data {
            RData::SOA(soa) => Some(entry.ttl.min(soa.minimum)),
            _ => None,
        });
        Answer::Nothing(soa.unwrap_or_default())
    };
    Some(match message.metadata.response_code {
        ResponseCode::NXDomain => nothing(),
        ResponseCode::NoError => {
            let names = aliases(&message.answers, name);
            let entries: Vec<_> = message.answers.iter().filter(|entry| names.contains(&entry.name)).collect();
            match find(&entries) {
                Ok(Some((record, ttl))) => Answer::Record(record, ttl),
                Ok(None) => nothing(),
                Err(why) => Answer::Failed(why),
            }
        }
        other => Answer::Failed(format!("the resolver answered {other}")),
    })
}

/// Returns the record that a name server's answer to another program's query contains. Returns `None` if the answer is
/// truncated, states an error, or contains no valid record. Also returns `None` if the record belongs to a top-level
/// domain, or if it belongs neither to the queried name nor to a domain above this name.
pub fn overhear(bytes: &[u8]) -> Option<Overheard> {
    let message = read(bytes)?;
    let query = &message.queries.first()?.name;
    if message.metadata.response_code != ResponseCode::NoError || message.metadata.truncation {
        return None;
    }
    let entries = || message.answers.iter().chain(&message.additionals);
    let is_record = |entry: &&Entry| matches!(&entry.data, RData::TXT(text) if Record::read(&joined(text)).is_some());
    let owner = entries().find(is_record)?.name.clone();
    let domain: Domain = {
        let name = owner.to_ascii().to_ascii_lowercase();
        let above = name.strip_prefix(LABEL).and_then(|rest| rest.strip_prefix('.'));
        above.unwrap_or(&name).parse().ok()?
    };
    // An answer is only valid for the domain of its query; it can't be authoritative for others.
    let query = query.to_ascii().to_ascii_lowercase();
    if domain.is_top() || !domain.has(query.strip_prefix(&format!("{LABEL}.")).unwrap_or(&query)) {
        return None;
    }
    let (record, ttl) = the_record(entries().filter(|entry| entry.name == owner)).ok()??;
    Some(Overheard { domain, record, ttl })
}

/// Returns the record in the DNS answer that this Ethernet frame carries, as [`overhear`] does.
pub fn overhear_frame(frame: &[u8]) -> Option<Overheard> {
    let packet = Packet::parse(frame);
    let is_answer = packet.form == Form::Whole && packet.protocol == UDP && packet.source_port == DNS_PORT;
    overhear(frame.get(packet.payload..packet.end).filter(|_| is_answer && packet.fragment == Fragment::Whole)?)
}

fn read(bytes: &[u8]) -> Option<Message> {
    if bytes.len() > LONGEST {
        return None;
    }
    let message = Message::from_vec(bytes).ok()?;
    let is_answer = message.metadata.message_type == MessageType::Response
        && message.metadata.op_code == OpCode::Query
        && message.queries.len() == 1;
    is_answer.then_some(message)
}

/// Returns the name itself and all names that it is an alias for.
fn aliases(entries: &[Entry], name: Name) -> BTreeSet<Name> {
    let mut names = BTreeSet::from([name.clone()]);
    let mut at = name;
    for _ in 0..ALIASES {
        let next = entries.iter().find_map(|entry| match &entry.data {
            RData::CNAME(alias) if entry.name == at => Some(alias.0.clone()),
            _ => None,
        });
        match next {
            Some(name) if names.insert(name.clone()) => at = name,
            _ => break,
        }
    }
    names
}

/// Returns the record among these texts. Two different records are an error, because nothing says which of them is
/// valid.
fn the_record<'a>(entries: impl Iterator<Item = &'a Entry>) -> Result<Option<(Record, u32)>, String> {
    let mut found: Option<(Record, u32)> = None;
    for entry in entries.filter(|entry| entry.dns_class == DNSClass::IN) {
        let RData::TXT(text) = &entry.data else { continue };
        let Some(record) = Record::read(&joined(text)) else { continue };
        let record = record.map_err(|why| format!("the domain's record is malformed: {why}"))?;
        match &found {
            Some((other, _)) if *other != record => return Err("the domain has two different records".to_owned()),
            _ => found = Some((record, entry.ttl)),
        }
    }
    Ok(found)
}

/// Returns the servers that these records list. A record whose target is not a host name lists no server. The target
/// `.` states that the name has no authority (RFC 2782).
fn the_servers(entries: &[&Entry]) -> Result<Option<(Vec<Server>, u32)>, String> {
    let records = entries.iter().filter_map(|entry| match &entry.data {
        RData::SRV(server) if entry.dns_class == DNSClass::IN => Some((server, entry.ttl)),
        _ => None,
    });
    let (mut servers, mut least) = (Vec::new(), None);
    for (server, ttl) in records {
        least = Some(least.map_or(ttl, |least: u32| least.min(ttl)));
        if let Ok(host) = server.target.to_ascii().parse::<Domain>()
            && server.port > 0
        {
            servers.push(Server { host, port: server.port, priority: server.priority, weight: server.weight });
        }
    }
    match least {
        Some(_) if servers.is_empty() => Err("the SRV records list no server".to_owned()),
        Some(ttl) => Ok(Some((servers, ttl))),
        None => Ok(None),
    }
}

fn joined(text: &hickory_proto::rr::rdata::TXT) -> Vec<u8> {
    text.txt_data.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::{A, CNAME, SOA, SRV, TXT};

    const TEXT: &str = "v=vouchsafe1; authority=https://vouch.example.org; protects=192.0.2.0/24";

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn txt(owner: &str, text: &str) -> Entry {
        let strings = text.as_bytes().chunks(60).collect();
        Entry::from_rdata(name(owner), 300, RData::TXT(TXT::from_bytes(strings)))
    }

    fn address(owner: &str) -> Entry {
        Entry::from_rdata(name(owner), 60, RData::A(A::new(192, 0, 2, 7)))
    }

    fn reply(query: &str, kind: RecordType, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::response(7, OpCode::Query);
        message.add_query(Query::query(name(query), kind));
        fill(&mut message);
        message.to_vec().unwrap()
    }

    fn domain() -> Domain {
        "example.org".parse().unwrap()
    }

    fn record() -> Record {
        Record::read(TEXT.as_bytes()).unwrap().unwrap()
    }

    fn answer_to(fill: impl FnOnce(&mut Message)) -> Option<Answer> {
        answer(&domain(), 7, &reply("_vouchsafe.example.org.", RecordType::TXT, fill))
    }

    #[test]
    fn the_question_is_for_text_below_the_domain() {
        let message = Message::from_vec(&question(&domain(), 9).unwrap()).unwrap();
        let query = &message.queries[0];
        assert_eq!((query.name.to_ascii().as_str(), query.query_type), ("_vouchsafe.example.org.", RecordType::TXT));
        assert!(message.metadata.recursion_desired && message.metadata.id == 9);
    }

    #[test]
    fn an_answer_is_a_record_or_says_for_how_long_there_is_none() {
        let found = answer_to(|message| {
            message.add_answer(txt("_vouchsafe.example.org.", TEXT));
        });
        assert_eq!(found, Some(Answer::Record(record(), 300)));
        let soa = SOA::new(name("ns.example.org."), name("x.example.org."), 1, 1, 1, 1, 120);
        let none = answer_to(|message| {
            message.metadata.response_code = ResponseCode::NXDomain;
            message.add_authority(Entry::from_rdata(name("example.org."), 900, RData::SOA(soa)));
        });
        assert_eq!(none, Some(Answer::Nothing(120)));
        let others = answer_to(|message| {
            message.add_answer(txt("_vouchsafe.example.org.", "v=spf1 -all"));
        });
        assert_eq!(others, Some(Answer::Nothing(0)));
        assert_eq!(answer_to(|message| message.metadata.truncation = true), Some(Answer::Truncated));
        let failed = answer_to(|message| message.metadata.response_code = ResponseCode::ServFail);
        assert!(matches!(failed, Some(Answer::Failed(_))), "{failed:?}");
    }

    #[test]
    fn an_alias_is_followed_and_a_ring_of_them_ends() {
        let alias = |owner: &str, to: &str| Entry::from_rdata(name(owner), 60, RData::CNAME(CNAME(name(to))));
        let found = answer_to(|message| {
            message.add_answer(alias("_vouchsafe.example.org.", "v.host.net."));
            message.add_answer(txt("v.host.net.", TEXT));
        });
        assert_eq!(found, Some(Answer::Record(record(), 300)));
        let ring = answer_to(|message| {
            message.add_answer(alias("_vouchsafe.example.org.", "v.host.net."));
            message.add_answer(alias("v.host.net.", "_vouchsafe.example.org."));
            message.add_answer(txt("elsewhere.net.", TEXT));
        });
        assert_eq!(ring, Some(Answer::Nothing(0)));
    }

    #[test]
    fn the_answer_to_another_question_is_none() {
        let good = reply("_vouchsafe.example.org.", RecordType::TXT, |message| {
            message.add_answer(txt("_vouchsafe.example.org.", TEXT));
        });
        assert!(answer(&domain(), 7, &good).is_some() && answer(&domain(), 8, &good).is_none());
        assert!(answer(&"example.net".parse().unwrap(), 7, &good).is_none());
        let for_addresses = reply("_vouchsafe.example.org.", RecordType::A, |_| {});
        assert!(answer(&domain(), 7, &for_addresses).is_none());
        assert!(answer(&domain(), 7, &question(&domain(), 7).unwrap()).is_none(), "our own question");
    }

    #[test]
    fn records_that_differ_are_none() {
        let twice = answer_to(|message| {
            message.add_answer(txt("_vouchsafe.example.org.", TEXT));
            message.add_answer(txt("_vouchsafe.example.org.", "v=vouchsafe1; authority=https://evil.example.org"));
        });
        assert!(matches!(twice, Some(Answer::Failed(_))), "{twice:?}");
        let malformed = answer_to(|message| {
            message.add_answer(txt("_vouchsafe.example.org.", "v=vouchsafe1; x"));
        });
        assert!(matches!(malformed, Some(Answer::Failed(_))), "{malformed:?}");
    }

    fn srv(owner: &str, port: u16, target: &str) -> Entry {
        Entry::from_rdata(name(owner), 300, RData::SRV(SRV::new(10, 5, port, name(target))))
    }

    #[test]
    fn the_servers_of_a_name_are_those_of_its_records() {
        let asked = "_vouchsafe._tcp.example.org.";
        let question = Message::from_vec(&servers_question(&domain(), 7).unwrap()).unwrap();
        assert_eq!(
            (question.queries[0].name.to_ascii().as_str(), question.queries[0].query_type),
            (asked, RecordType::SRV)
        );
        let answered = |fill: &dyn Fn(&mut Message)| servers_answer(&domain(), 7, &reply(asked, RecordType::SRV, fill));
        let server = |host: &str| Server { host: host.parse().unwrap(), port: 8443, priority: 10, weight: 5 };
        let found = answered(&|message| {
            message.add_answer(srv(asked, 8443, "A.example.org."));
            message.add_answer(srv(asked, 0, "port.example.org."));
            message.add_answer(srv(asked, 8443, "under_score.example.org."));
            message.add_answer(srv("_vouchsafe._tcp.example.net.", 8443, "other.example.org."));
            message.add_answer(srv(asked, 8443, "b.example.net."));
        });
        assert_eq!(found, Some(Answer::Record(vec![server("a.example.org"), server("b.example.net")], 300)));
        let none = answered(&|message| {
            message.add_answer(srv(asked, 8443, "."));
        });
        assert!(matches!(none, Some(Answer::Failed(_))), "{none:?}");
        assert_eq!(answered(&|_| {}), Some(Answer::Nothing(0)));
        assert_eq!(answered(&|message| message.metadata.truncation = true), Some(Answer::Truncated));
        let to_another = reply("_vouchsafe._tcp.example.net.", RecordType::SRV, |_| {});
        assert_eq!(servers_answer(&domain(), 7, &to_another), None);
        assert_eq!(servers_answer(&domain(), 7, &reply(asked, RecordType::TXT, |_| {})), None);
    }

    #[test]
    fn what_is_overheard_is_of_the_domain_that_was_asked_about() {
        let overheard_in = |query: &str, owner: &str| {
            overhear(&reply(query, RecordType::A, |message| {
                message.add_answer(address(query));
                message.add_additional(txt(owner, TEXT));
            }))
        };
        let found = Some(Overheard { domain: domain(), record: record(), ttl: 300 });
        assert_eq!(overheard_in("Git.Example.org.", "example.org."), found);
        assert_eq!(overheard_in("git.example.org.", "_vouchsafe.example.org."), found);
        assert_eq!(overheard_in("example.org.", "example.org."), found);
        for (query, owner) in [
            ("www.example.net.", "example.org."),
            ("badexample.org.", "example.org."),
            ("git.example.org.", "org."),
            ("git.example.org.", "x.git.example.org."),
        ] {
            assert_eq!(overheard_in(query, owner), None, "{query} {owner}");
        }
    }

    #[test]
    fn half_an_answer_and_a_name_that_points_at_itself_are_none() {
        let whole = reply("git.example.org.", RecordType::A, |message| {
            message.add_answer(address("git.example.org."));
            message.add_additional(txt("example.org.", TEXT));
        });
        assert!(overhear(&whole).is_some());
        for length in 0..whole.len() {
            assert!(overhear(&whole[..length]).is_none(), "{length}");
        }
        let mut ring = whole.clone();
        // The question's name, which begins after the header, becomes a pointer to itself.
        ring[12..14].copy_from_slice(&[0xc0, 12]);
        assert!(overhear(&ring).is_none());
        assert!(overhear(&vec![0; LONGEST + 1]).is_none());
    }
}
