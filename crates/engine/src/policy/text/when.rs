//! Parsing of the key `when`: weekdays, hours and dates into windows.

use crate::document::{Fields, Reader, hint};
use crate::policy::window::{self, DAY, When, Window};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use toml::Spanned;
use toml::de::DeValue;

const KEYS: &[&str] = &["days", "hours", "zone", "from", "until"];
const WEEK: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Maximum number of windows of a rule, and of ranges of hours of a window.
const MOST: usize = 32;

pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> When {
    let what = "a time window";
    let way_out = "a time window must be written like { days = \"mon-fri\", hours = \"08:00-18:00\", zone = \
                   \"Europe/Zurich\" }";
    let windows = fields.inner_tables(reader, "when", what, KEYS, way_out);
    if let Some(surplus) = windows.get(MOST) {
        reader.fault(surplus.span(), format!("a rule can have at most {MOST} time windows"));
        return When::default();
    }
    When(windows.iter().map(|window| read_window(reader, window)).collect())
}

fn read_window(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Window {
    if KEYS.iter().all(|key| *key == "zone" || fields.value(key).is_none()) {
        reader.fault(fields.span(), "a time window must set at least one of days, hours, from, until");
    }
    let mut read = Window::default();
    if let Some(word) = fields.text(reader, "zone") {
        match window::zone(word.get_ref()) {
            Some(zone) => read.zone = zone,
            None => {
                let zones = window::zones();
                let hint = hint(word.get_ref(), zones.iter().map(String::as_str));
                let why = format!("`{}` is not a time zone{hint}", word.get_ref().escape_debug());
                reader
                    .fault(word.span(), format!("{why} (names are those of the IANA database, such as Europe/Zurich)"));
            }
        }
    }
    if fields.value("days").is_some() {
        let texts = fields.required_texts(reader, "days");
        read.days = texts.iter().filter_map(|text| days(reader, text)).fold(0, |all, days| all | days);
    }
    if fields.value("hours").is_some() {
        let texts = fields.required_texts(reader, "hours");
        if let Some(surplus) = texts.get(MOST) {
            reader.fault(surplus.span(), format!("a time window can have at most {MOST} ranges of hours"));
        }
        read.hours = texts.iter().take(MOST).filter_map(|text| hours(reader, text)).collect();
    }
    let from = fields.value("from").and_then(|value| date(reader, value, &read.zone));
    let until = fields.value("until").and_then(|value| {
        let (at, is_day) = date(reader, value, &read.zone)?;
        // If `until` is a day, the window includes that day.
        let until = if is_day { window::day_after(at, &read.zone).unwrap_or(at) } else { at };
        if from.is_some_and(|(from, _)| until <= from) {
            reader.fault(value.span(), "`until` must be after `from`");
        }
        Some(window::seconds(until))
    });
    read.from = from.map(|(from, _)| window::seconds(from));
    read.until = until;
    read
}

/// Parses weekdays such as `mon`, `mon-fri` or `sat-mon` to a bit set.
fn days(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<u8> {
    let day = |word: &str| WEEK.iter().position(|day| *day == word);
    let (first, last) = text.get_ref().split_once('-').unwrap_or((text.get_ref(), text.get_ref()));
    let (Some(first), Some(last)) = (day(first), day(last)) else {
        let known = WEEK.join(", ");
        reader.fault(
            text.span(),
            format!(
                "`{}` is not a day or range of days, such as mon-fri; days: {known}",
                text.get_ref().escape_debug()
            ),
        );
        return None;
    };
    let length = (last + 7 - first) % 7;
    Some((first..=first + length).fold(0, |days, day| days | 1 << (day % 7)))
}

/// Parses hours such as `08:00-18:00` or `22:00-06:00` to minutes of the day.
fn hours(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<(u16, u16)> {
    let minute = |word: &str| {
        let (hour, minute) = word.split_once(':').filter(|(hour, minute)| (hour.len(), minute.len()) == (2, 2))?;
        let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
        Some(hour * 60 + minute).filter(|at| minute < 60 && *at <= DAY)
    };
    let span = text.get_ref().split_once('-').and_then(|(begin, end)| Some((minute(begin)?, minute(end)?)));
    let span = span.filter(|(begin, end)| begin != end && *begin < DAY && *end > 0);
    if span.is_none() {
        let way_out = "such as 08:00-18:00, 22:00-06:00 (into the next day) or 18:00-24:00";
        reader.fault(text.span(), format!("`{}` is not a range of hours, {way_out}", text.get_ref().escape_debug()));
    }
    span
}

/// Parses a day, a local time, or a time with its offset, with or without quotes. The `bool` says whether it is a day.
fn date(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>, zone: &TimeZone) -> Option<(Timestamp, bool)> {
    let text = match value.get_ref() {
        DeValue::Datetime(date) => Some(date.to_string()),
        other => other.as_str().map(ToOwned::to_owned),
    };
    let read = text.and_then(|text| window::date(&text, zone));
    if read.is_none() {
        reader.fault(value.span(), "expected a date: 2026-03-01, 2026-03-01T18:00, or 2026-03-01T18:00:00Z");
    }
    read
}
