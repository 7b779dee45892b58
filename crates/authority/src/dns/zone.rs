//! The zone: parses a zone file and answers queries from it. Does no I/O: queries and answers are byte strings.

use anyhow::{Context, Result, bail, ensure};
use engine::discovery::{Domain, Record as Discovery};
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{HINFO, SOA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::txt::Parser;
use std::collections::BTreeMap;

/// Maximum length of a UDP answer for a client that does not advertise a size, in bytes.
const LEAST_UDP: u16 = 512;
/// Maximum length of a UDP answer for any client, in bytes: such an answer fits in one packet on every path.
const MOST_UDP: u16 = 1232;
/// Maximum number of aliases that are followed.
const ALIASES: usize = 8;
/// Length of a DNS header, in bytes.
const HEADER: usize = 12;

/// The transport by which a query arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A UDP datagram. Its source address is possibly forged.
    Udp,
    /// A TCP connection.
    Tcp,
}

type Sets = BTreeMap<RecordType, Vec<Record>>;

/// The records of a domain, and its discovery record.
pub struct Zone {
    origin: Name,
    soa: Record,
    /// Record sets by lower-case name. A name that has no records but has names below it (an empty non-terminal) has an
    /// empty entry.
    names: BTreeMap<Name, Sets>,
    discovery: Discovery,
    /// The discovery record as a TXT record of the domain itself.
    text: Record,
}

impl Zone {
    /// Parses a zone file, and adds the domain's discovery record with the time to live `ttl`, in seconds.
    ///
    /// # Errors
    /// Fails if the file is malformed, has records outside of the domain, lacks a SOA or NS record, or contains a
    /// discovery record.
    pub fn read(file: &str, domain: &Domain, discovery: Discovery, ttl: u32) -> Result<Self> {
        let origin = Name::from_ascii(format!("{domain}."))?;
        let (_, sets) = Parser::new(file, None, Some(origin.clone())).parse().context("the file is malformed")?;
        let mut names: BTreeMap<Name, Sets> = BTreeMap::new();
        for set in sets.into_values() {
            let (name, kind) = (set.name().to_lowercase(), set.record_type());
            ensure!(
                origin.zone_of(&name),
                "{name} is outside of the domain {origin}: remove its records from the file"
            );
            ensure!(
                set.dns_class() == DNSClass::IN,
                "the records of {name} are of class {}: only IN is possible",
                set.dns_class()
            );
            let records = set.records_without_rrsigs().cloned().collect();
            names.entry(name).or_default().insert(kind, records);
        }
        let apex = names.get(&origin).context("the file has no records of the domain itself")?;
        let soa = apex.get(&RecordType::SOA).and_then(|set| set.first()).cloned();
        let soa = soa.with_context(|| format!("the file has no SOA record of {origin}"))?;
        ensure!(apex.contains_key(&RecordType::NS), "the file has no NS record of {origin}");
        for (name, sets) in &names {
            ensure!(
                !sets.contains_key(&RecordType::CNAME) || sets.len() == 1,
                "{name} has a CNAME record, so it must have no other records"
            );
        }
        let strings = discovery.strings();
        let text = |name: Name| Record::from_rdata(name, ttl, RData::TXT(TXT::new(strings.clone())));
        for name in [origin.clone(), Name::from_ascii(format!("{}.", domain.record_name()))?] {
            let set = names.entry(name.clone()).or_default().entry(RecordType::TXT).or_default();
            if set.iter().any(is_discovery) {
                bail!(
                    "{name} has a record that begins with v=vouchsafe1: remove this record from the file, because the \
                     authority adds the discovery record itself"
                );
            }
            set.push(text(name));
        }
        // Queries for empty non-terminals must find that the name exists.
        for name in names.keys().cloned().collect::<Vec<_>>() {
            let mut above = name.base_name();
            while origin.zone_of(&above) {
                names.entry(above.clone()).or_default();
                above = above.base_name();
            }
        }
        Ok(Self { text: text(origin.clone()), origin, soa, names, discovery })
    }

    /// Returns the number of names that have records.
    pub fn count(&self) -> usize {
        self.names.values().filter(|sets| !sets.is_empty()).count()
    }

    /// Answers a query, with an error code if the query cannot be served. Returns `None` if the message cannot be a
    /// query.
    pub fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let Ok(question) = Message::from_vec(bytes) else { return malformed(bytes) };
        if question.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = reply_to(&question);
        let edns = question.edns.as_ref();
        match self.check(&question) {
            Err(code) => answer.metadata.response_code = code,
            Ok((name, kind)) => self.fill(&mut answer, name, kind),
        }
        let most = match transport {
            Transport::Tcp => u16::MAX,
            Transport::Udp => edns.map_or(LEAST_UDP, |edns| edns.max_payload().clamp(LEAST_UDP, MOST_UDP)),
        };
        fit(answer, most.into())
    }

    fn check<'q>(&self, question: &'q Message) -> Result<(&'q Name, RecordType), ResponseCode> {
        if question.metadata.op_code != OpCode::Query {
            return Err(ResponseCode::NotImp);
        }
        if question.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Err(ResponseCode::BADVERS);
        }
        let [query] = &question.queries[..] else { return Err(ResponseCode::FormErr) };
        let ours = query.query_class == DNSClass::IN && self.origin.zone_of(&query.name);
        if !ours || matches!(query.query_type, RecordType::AXFR | RecordType::IXFR) {
            return Err(ResponseCode::Refused);
        }
        Ok((&query.name, query.query_type))
    }

    fn fill(&self, answer: &mut Message, wanted: &Name, kind: RecordType) {
        answer.metadata.authoritative = true;
        let mut name = wanted.clone();
        for _ in 0..ALIASES {
            if self.refer(answer, &name) {
                return;
            }
            let Some(sets) = self.sets(&name) else {
                answer.metadata.response_code = ResponseCode::NXDomain;
                return answer.authorities.push(self.negative());
            };
            let as_asked = |record: &Record| Record::from_rdata(name.clone(), record.ttl, record.data.clone());
            if kind == RecordType::ANY && !sets.is_empty() {
                // One small record instead of all records (RFC 8482 §4.2).
                let little = RData::HINFO(HINFO::new("RFC8482".to_owned(), String::new()));
                return answer.answers.push(Record::from_rdata(name, self.soa.ttl, little));
            }
            if let Some(set) = sets.get(&kind) {
                answer.answers.extend(set.iter().map(as_asked));
                return self.add_text(answer);
            }
            let alias = sets.get(&RecordType::CNAME).and_then(|set| set.first());
            let Some((record, RData::CNAME(to))) = alias.map(|record| (record, &record.data)) else {
                return answer.authorities.push(self.negative());
            };
            answer.answers.push(as_asked(record));
            name = to.0.clone();
            if !self.origin.zone_of(&name) {
                return;
            }
        }
    }

    /// Adds the domain's discovery record to an answer that contains a protected address (wire.md §7.1).
    fn add_text(&self, answer: &mut Message) {
        let mut addresses = answer.answers.iter().filter_map(|record| record.data.ip_addr());
        if addresses.any(|address| self.discovery.covers(address)) {
            answer.additionals.push(self.text.clone());
        }
    }

    /// Returns the record sets of a name, or those of the wildcard that matches it (RFC 4592); `None` if the name does
    /// not exist.
    fn sets(&self, name: &Name) -> Option<&Sets> {
        let name = name.to_lowercase();
        if let Some(sets) = self.names.get(&name) {
            return Some(sets);
        }
        let mut above = name.base_name();
        while self.origin.zone_of(&above) && !self.names.contains_key(&above) {
            above = above.base_name();
        }
        self.names.get(&above.prepend_label("*").ok()?)
    }

    /// Refers the client to other servers if the name belongs to a delegated part of the zone. Reports whether it did.
    fn refer(&self, answer: &mut Message, name: &Name) -> bool {
        let name = name.to_lowercase();
        let depth = usize::from(self.origin.num_labels()) + 1..=usize::from(name.num_labels());
        let cut = depth.map(|labels| name.trim_to(labels)).find_map(|at| self.names.get(&at)?.get(&RecordType::NS));
        let Some(servers) = cut else { return false };
        answer.metadata.authoritative = !answer.answers.is_empty();
        for server in servers {
            answer.authorities.push(server.clone());
            let RData::NS(host) = &server.data else { continue };
            let sets = self.names.get(&host.0.to_lowercase());
            let glue = sets.into_iter().flat_map(|sets| [RecordType::A, RecordType::AAAA].map(|kind| sets.get(&kind)));
            answer.additionals.extend(glue.flatten().flatten().cloned());
        }
        true
    }

    /// Returns the SOA record, with the time to live of a negative answer (RFC 2308 §3).
    fn negative(&self) -> Record {
        let mut soa = self.soa.clone();
        if let RData::SOA(SOA { minimum, .. }) = &soa.data {
            soa.ttl = soa.ttl.min(*minimum);
        }
        soa
    }
}

/// Returns an empty answer with the flag for truncation, which makes the client retry by TCP. Returns `None` if the
/// message is not a query, or if the answer would be longer than the query.
pub fn shortened(bytes: &[u8]) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).ok()?;
    let is_question = question.metadata.message_type == MessageType::Query && question.queries.len() == 1;
    let mut answer = reply_to(&question);
    answer.metadata.truncation = true;
    is_question.then(|| answer.to_vec().ok()).flatten().filter(|answer| answer.len() <= bytes.len())
}

fn reply_to(question: &Message) -> Message {
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata = Metadata::response_from_request(&question.metadata);
    // The server answers messages with one question only. Several questions, written again without compression, could
    // be far longer than the query.
    if question.queries.len() == 1 {
        answer.queries.clone_from(&question.queries);
    }
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MOST_UDP);
        answer.set_edns(edns);
    }
    answer
}

/// Returns a FORMERR answer of header size, or `None` if the message cannot be a query.
fn malformed(bytes: &[u8]) -> Option<Vec<u8>> {
    const ANSWER: u8 = 0x80;
    let header = bytes.get(..HEADER).filter(|header| header[2] & ANSWER == 0)?;
    let id = u16::from_be_bytes([header[0], header[1]]);
    Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok()
}

/// Shortens an answer to at most `most` bytes: first the additional records are removed, then all records.
fn fit(mut answer: Message, most: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= most {
        return Some(bytes);
    }
    answer.additionals.clear();
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= most {
        return Some(bytes);
    }
    answer.truncate().to_vec().ok()
}

fn is_discovery(record: &Record) -> bool {
    matches!(&record.data, RData::TXT(text) if Discovery::read(&text.txt_data.concat()).is_some())
}

#[cfg(test)]
mod tests;
