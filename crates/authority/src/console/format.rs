//! Numbers, sizes and times in words. All pages use these functions, so that the wording is consistent, such as `1
//! packet` and `2 packets`.

use shell::table::utc;

/// Separator between groups of three digits: a narrow no-break space.
const SEPARATOR: char = '\u{202f}';
/// Numbers below this are written without separators.
const SHORT: u64 = 10_000;

/// Formats a number for display: `9999`, `10 000`.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    if number < SHORT {
        return digits;
    }
    let mut grouped = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            grouped.push(SEPARATOR);
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a count of something whose plural ends in `s`: `no packet`, `1 packet`, `2 packets`.
pub fn count(how_many: impl TryInto<u64>, one: &str) -> String {
    count_of(how_many, one, &format!("{one}s"))
}

/// Formats a count of something with an irregular plural, as [`count`] does: `no person`, `1 person`, `2 people`.
pub fn count_of(how_many: impl TryInto<u64>, one: &str, many: &str) -> String {
    match how_many.try_into().unwrap_or(u64::MAX) {
        0 => format!("no {one}"),
        1 => format!("1 {one}"),
        more => format!("{} {many}", number(more)),
    }
}

/// Capitalises the first letter of a text.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Formats a size, given in bytes, such as `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    // From 1023.95 on, one decimal would show 1024.0.
    while amount >= 1023.95 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// Formats a time relative to `now`: `5 minutes ago`, `in 2 hours`.
pub fn relative(time: u64, now: u64) -> String {
    let distance = time.abs_diff(now);
    let words = match distance {
        0..5 => return "now".into(),
        5..60 => count(distance, "second"),
        60..3600 => count(distance / 60, "minute"),
        3600..172_800 => count(distance / 3600, "hour"),
        _ => count(distance / 86_400, "day"),
    };
    if time < now { format!("{words} ago") } else { format!("in {words}") }
}

/// Formats a time as `2026-03-02 12:00:00 UTC`.
pub fn exact(time: u64) -> String {
    utc(time).replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_agree_with_their_number() {
        let packets = [0_u64, 1, 2, 12_345].map(|packets| count(packets, "packet"));
        assert_eq!(packets, ["no packet", "1 packet", "2 packets", "12\u{202f}345 packets"]);
        assert_eq!(
            [0_usize, 1, 2].map(|people| count_of(people, "person", "people")),
            ["no person", "1 person", "2 people"]
        );
        assert_eq!(sentence("no packet"), "No packet");
    }

    #[test]
    fn long_numbers_are_grouped_from_their_end() {
        let numbers = [0, 999, 9999, 10_000, 123_456, 1_234_567].map(number);
        assert_eq!(numbers, ["0", "999", "9999", "10\u{202f}000", "123\u{202f}456", "1\u{202f}234\u{202f}567"]);
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let sizes = [0, 1023, 1024, 1536, 1_048_575, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "16.0 EiB"]);
    }

    #[test]
    fn times_are_seen_from_now() {
        let now = 1_000_000;
        let times = [now - 4, now - 10, now - 60, now - 7200, now + 3, now + 90, now + 7200, now + 172_800];
        let seen = times.map(|time| relative(time, now));
        let words =
            ["now", "10 seconds ago", "1 minute ago", "2 hours ago", "now", "in 1 minute", "in 2 hours", "in 2 days"];
        assert_eq!(seen, words);
    }
}
