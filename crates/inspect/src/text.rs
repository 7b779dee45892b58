//! Text output of explained packets.

use std::fmt;

use shell::table::utc;

use crate::content::Content;
use crate::packet::Explained;

/// The text that describes a packet: one line, and one line below it for each detail and remark.
pub struct Lines<'a>(pub &'a Explained);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = self.0;
        let unknown = "?".to_owned();
        let (from, to) = (packet.source.as_ref().unwrap_or(&unknown), packet.destination.as_ref().unwrap_or(&unknown));
        let (seconds, fraction) = packet.time.split_once('.').unwrap_or_default();
        let second = seconds.parse().unwrap_or(0);
        let day = utc(second);
        let clock = day.get(11..19).unwrap_or_default();
        write!(f, "{:>5}  {clock}.{}  ", packet.number, fraction.get(..6).unwrap_or_default())?;
        match packet.protocol.as_str() {
            "not ip" => write!(f, "not IP")?,
            protocol => write!(f, "{from} > {to}  {protocol}")?,
        }
        if !packet.tcp_flags.is_empty() {
            write!(f, " {}", packet.tcp_flags.join(","))?;
        }
        if packet.datagram {
            write!(f, " in a UDP datagram")?;
        }
        writeln!(f, "  {} bytes", packet.length)?;
        let mut say = |text: &str| writeln!(f, "       {text}");
        if let Some(content) = &packet.content {
            for line in explain(content, second) {
                say(&line)?;
            }
        }
        for line in packet.tunnel.iter().flat_map(crate::tunnel::Sealed::lines) {
            say(&line)?;
        }
        if let Some(carrier) = packet.carrier {
            say(&format!("carrier {carrier}: Vouchsafe added {} of these {} bytes", packet.added, packet.length))?;
        }
        match packet.flow {
            Some(flow) if packet.content.is_none() && packet.tunnel.is_none() => {
                say(&format!("part of the flow that packet {flow} opened; nothing added"))?
            }
            _ => {}
        }
        for remark in &packet.remarks {
            say(&format!("! {remark}"))?;
        }
        Ok(())
    }
}

fn explain(content: &Content, now: u64) -> Vec<String> {
    match content {
        Content::Token { suite, flags, epoch, prefix_length, expires, handle, time, nonce, tag } => vec![
            format!("token of grant {handle}, suite {suite}, prefix /{prefix_length}, flags {}", flags.join(" ")),
            format!("made {} ({}), nonce {nonce:08x}, tag {tag}", utc((*time).into()), since(now, (*time).into())),
            format!(
                "the grant ends {} ({}), key of epoch {epoch}",
                utc((*expires).into()),
                since(now, (*expires).into())
            ),
        ],
        Content::LsToken { unique_id, nonce1, nonce2, tag } => {
            vec![
                format!("token of the scheme of LS: unique id {unique_id}, nonce1 {nonce1}, nonce2 {nonce2:04x}"),
                format!("hash {tag}"),
            ]
        }
        Content::KeyTransfer { unique_id, nonce1 } => {
            vec![format!("key transfer: a client key (not shown) of unique id {unique_id}, nonce1 {nonce1}")]
        }
        Content::Support => vec!["support option: the sending agent accepts client keys in band".to_owned()],
        Content::Discovery { record } => vec![format!("discovery record, a hint and no credential: {record}")],
        Content::Malformed { .. } => vec!["malformed".to_owned()],
    }
}

fn since(now: u64, time: u64) -> String {
    match time.cmp(&now) {
        std::cmp::Ordering::Less => format!("{} s before this packet", now - time),
        std::cmp::Ordering::Equal => "in the second of this packet".to_owned(),
        std::cmp::Ordering::Greater => format!("{} s after this packet", time - now),
    }
}

/// Counts over all packets of a capture.
#[derive(Default)]
pub struct Totals {
    packets: u64,
    ours: u64,
    tokens: u64,
    in_flows: u64,
    added: u64,
    remarked: u64,
    sealed: u64,
}

impl Totals {
    /// Counts `packet`.
    pub fn add(&mut self, packet: &Explained) {
        self.packets += 1;
        self.ours += u64::from(packet.content.is_some());
        self.tokens += u64::from(matches!(packet.content, Some(Content::Token { .. } | Content::LsToken { .. })));
        self.in_flows += u64::from(packet.flow.is_some());
        self.added += packet.added as u64;
        self.remarked += u64::from(!packet.remarks.is_empty());
        self.sealed += u64::from(packet.tunnel.is_some());
    }

    /// Reports whether the capture contained nothing of Vouchsafe.
    pub fn nothing(&self) -> bool {
        self.ours == 0 && self.sealed == 0
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, ours, tokens, in_flows, added, remarked, sealed } = self;
        write!(
            f,
            "packets: {packets}; with content of Vouchsafe: {ours} (tokens: {tokens}); in flows that a token opened: \
             {in_flows}; with remarks: {remarked}; bytes added: {added}"
        )?;
        if *sealed > 0 { write!(f, "; of sealed tunnels: {sealed}") } else { Ok(()) }
    }
}
