//! `vouchsafe authority segments`: lists the path segments in force.

use super::List;
use crate::admin::{self, MOST_SEGMENTS, SegmentEntry, SegmentFilter, SegmentList};
use anyhow::Result;
use clap::{Args, value_parser};
use engine::model::Service;
use shell::table::{Table, count, span, utc};
use shell::{print, println};
use std::process::ExitCode;

/// Options of the list of segments
#[derive(Args, Debug)]
pub struct SegmentsArgs {
    /// Options of the list
    #[command(flatten)]
    list: List,
    /// Only segments of this network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Only segments that this person or service account requested
    #[arg(long)]
    person: Option<String>,
    /// Maximum number of segments to list; the summary counts all segments anyway
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=MOST_SEGMENTS as i64))]
    limit: u32,
}

pub(super) async fn run(arguments: SegmentsArgs) -> Result<ExitCode> {
    let SegmentsArgs { list, network, person, limit } = arguments;
    let filter = SegmentFilter { network, person, limit: limit as usize };
    let segments = admin::segments(&list.at.directory(), filter).await?;
    if list.json {
        println!("{}", serde_json::to_string_pretty(&segments)?);
    } else {
        print!("{}", text(&segments));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the list with its summary.
fn text(list: &SegmentList) -> String {
    let until = |expires: u64| format!("{}, in {}", utc(expires), span(expires.saturating_sub(list.now)));
    let Some(last) = list.last_expires else { return "no segment is in force\n".to_owned() };
    let ends = if list.total == 1 { "it ends" } else { "the last ends" };
    let total = count(list.total, "segment");
    let are = if list.total == 1 { "is" } else { "are" };
    let mut summary = format!("{total} {are} in force; {ends} {}\n", until(last));
    if list.segments.len() < list.total {
        let shown = list.segments.len();
        summary += &format!("listed: the first {shown}. --network, --person and --limit choose others\n");
    }
    let rows = list.segments.iter().map(|segment| {
        vec![
            segment.network.clone(),
            format!("{} to {}", segment.sender, segment.receiver),
            service(segment),
            segment
                .device
                .as_ref()
                .map_or_else(|| segment.person.clone(), |device| format!("{}/{device}", segment.person)),
            format!("{} to {}", segment.sending, segment.receiving),
            until(segment.expires),
        ]
    });
    const HEAD: [&str; 6] = ["NETWORK", "FROM AND TO", "SERVICE", "REQUESTED BY", "ENDPOINTS", "UNTIL"];
    format!("{}\n{summary}", Table::new(&HEAD, rows))
}

/// Formats the service of a segment, followed in parentheses by its other properties, such as `tcp/443 (one flow)`.
fn service(segment: &SegmentEntry) -> String {
    let service = segment.protocol.map_or(Service { protocol: 0, first_port: 0, last_port: u16::MAX }, |protocol| {
        let port = segment.port.unwrap_or_default();
        Service { protocol, first_port: port, last_port: port }
    });
    let marks = [(segment.single, "one flow"), (segment.reply, "with answers"), (segment.answers, "answers")];
    let marks: Vec<_> = marks.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect();
    let service = engine::policy::service(&service);
    if marks.is_empty() { service } else { format!("{service} ({})", marks.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> SegmentEntry {
        SegmentEntry {
            network: "blue".into(),
            vni: 100,
            sender: [10, 0, 0, 5].into(),
            receiver: [10, 0, 0, 7].into(),
            protocol: Some(6),
            port: Some(443),
            single: true,
            reply: true,
            answers: false,
            person: "host-1".into(),
            device: Some("rack".into()),
            sending: [192, 0, 2, 1].into(),
            receiving: [192, 0, 2, 2].into(),
            expires: 1300,
        }
    }

    #[test]
    fn a_list_says_how_many_there_are_and_when_they_end() {
        let list = |total, segments| SegmentList { total, last_expires: Some(1300), segments, now: 1000 };
        let one = text(&list(1, vec![segment()]));
        assert!(one.contains("1 segment is in force; it ends 1970-01-01T00:21:40Z, in 5 min\n"), "{one}");
        assert!(one.contains("10.0.0.5 to 10.0.0.7  tcp/443 (one flow, with answers)  host-1/rack"), "{one}");
        assert!(!one.contains("listed:"), "{one}");
        let many = text(&list(3, vec![segment()]));
        assert!(many.contains("3 segments are in force; the last ends"), "{many}");
        assert!(many.contains("listed: the first 1."), "{many}");
        let none = SegmentList { total: 0, last_expires: None, segments: vec![], now: 1000 };
        assert_eq!(text(&none), "no segment is in force\n");
    }

    #[test]
    fn a_segment_for_every_service_says_so() {
        let all = SegmentEntry { protocol: None, port: None, single: false, reply: false, answers: true, ..segment() };
        assert_eq!(service(&all), "all (answers)");
    }
}
