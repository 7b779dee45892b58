//! Reads TOML documents field by field, so that the user gets all faults of a file at once, each with its line and
//! column. If a name is unknown but close to a known name, the fault suggests the known name. This module does not know
//! what the documents mean.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A fault that was found in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The line of the fault, starting from 1.
    pub line: usize,
    /// The column of the fault, in characters, starting from 1.
    pub column: usize,
    /// Text that says what is wrong and how to correct it.
    pub message: String,
}

/// The faults of a document, at most 100, in the order of its lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Returns one fault that concerns the document as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Self(vec![Fault { line: 1, column: 1, message: message.into() }])
    }

    /// Returns all faults.
    pub fn all(&self) -> &[Fault] {
        &self.0
    }

    /// Formats the faults, one line each: `FILE:LINE:COLUMN: what is wrong`.
    pub fn in_file(&self, file: &str) -> String {
        let lines: Vec<_> = self.0.iter().map(|f| format!("{file}:{}:{}: {}", f.line, f.column, f.message)).collect();
        lines.join("\n")
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            write!(f, "{gap}{}:{}: {}", fault.line, fault.column, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Maximum number of faults reported. It is enough for the author to begin with, and limits the cost of a hostile file.
const MOST_FAULTS: usize = 100;
/// The longest text, in bytes, for which all syntax errors are reported rather than only the first.
const MOST_RECOVERED: usize = 256 << 10;
/// Maximum length, in bytes, of names that are compared, and maximum number of known names with which a name is
/// compared.
const LONGEST_COMPARED: usize = 64;
const MOST_COMPARED: usize = 4096;

/// Collects the faults of a document while the document is being read.
pub struct Reader<'t> {
    text: &'t str,
    /// Byte offsets at which lines begin.
    lines: Vec<usize>,
    faults: Vec<Fault>,
    left_out: usize,
}

impl<'t> Reader<'t> {
    /// Parses `text` and passes the document's root table, whose keys are `known`, to the function `read`, which builds
    /// a value and collects faults. Returns the value if there are no faults.
    ///
    /// # Errors
    ///
    /// Returns the faults of the document: at most 100, and only errors of syntax if there are any.
    pub fn read<T>(
        text: &'t str,
        known: &[&str],
        read: impl FnOnce(&mut Self, &Fields<'_, 't>) -> Option<T>,
    ) -> Result<T, Faults> {
        let mut reader = Self::new(text);
        let root = match DeTable::parse(text) {
            Ok(root) => root,
            Err(first) => {
                // Each error takes at least one allocation, and three bytes can contain two errors.
                let all = if text.len() <= MOST_RECOVERED { DeTable::parse_recoverable(text).1 } else { vec![first] };
                for error in all {
                    reader.fault(error.span().unwrap_or(0..0), error.message());
                }
                return Err(reader.into_faults());
            }
        };
        let fields = Fields::new(&mut reader, root.get_ref(), 0..0, "the document", known);
        match read(&mut reader, &fields) {
            Some(made) if reader.faults.is_empty() => Ok(made),
            _ => Err(reader.into_faults()),
        }
    }

    /// Creates a reader that collects the faults of `text`.
    fn new(text: &'t str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, lines, faults: Vec::new(), left_out: 0 }
    }

    /// Reports whether the maximum number of faults is reached, so that the reader need not read the rest of the
    /// document.
    pub fn is_full(&self) -> bool {
        self.faults.len() >= MOST_FAULTS
    }

    /// Records a fault at the byte range `span`. Once the maximum number of faults is reached, only counts the fault.
    pub fn fault(&mut self, span: Range<usize>, message: impl Into<String>) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let (line, column) = self.place(span.start);
        self.faults.push(Fault { line, column, message: message.into() });
    }

    /// Returns the line and the column of the byte offset `offset` in the document, both starting from 1.
    pub fn place(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|begin| *begin <= offset).max(1);
        let column = self.text.get(self.lines[line - 1]..offset).map_or(0, |before| before.chars().count());
        (line, column + 1)
    }

    fn into_faults(mut self) -> Faults {
        if self.faults.is_empty() {
            self.fault(0..0, "the document cannot be read");
        }
        self.faults.sort();
        if self.left_out > 0
            && let Some(last) = self.faults.last_mut()
        {
            last.message += &format!("\n(and {} more errors)", self.left_out);
        }
        Faults(self.faults)
    }
}

/// A table with known keys. A getter for a type records a fault if the value has another type. The getter then returns
/// the same as if the key were absent.
pub struct Fields<'a, 't> {
    table: &'a DeTable<'t>,
    span: Range<usize>,
    what: &'static str,
}

impl<'a, 't> Fields<'a, 't> {
    /// Creates the getters for `table`, and records a fault for each key that is not in `known`. Messages use `what` as
    /// the name of the table.
    pub fn new(
        reader: &mut Reader<'_>,
        table: &'a DeTable<'t>,
        span: Range<usize>,
        what: &'static str,
        known: &[&str],
    ) -> Self {
        for key in table.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let hint = if reader.is_full() { String::new() } else { hint(key.get_ref(), known.iter().copied()) };
                reader.fault(key.span(), format!("unknown key `{}` in {what}{hint}", key.get_ref()));
            }
        }
        Self { table, span, what }
    }

    /// Returns the byte range of the table in the document.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the value of a key, if present.
    pub fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    /// Returns the value of a key. Records a fault if the key is absent.
    pub fn required(&self, reader: &mut Reader<'_>, key: &str) -> Option<&'a Spanned<DeValue<'t>>> {
        let value = self.value(key);
        if value.is_none() {
            reader.fault(self.span(), format!("missing key `{key}` in {}", self.what));
        }
        value
    }

    /// Returns the string of a key, if present.
    pub fn text(&self, reader: &mut Reader<'_>, key: &str) -> Option<Spanned<&'a str>> {
        self.value(key).and_then(|value| text(reader, value))
    }

    /// Returns the address and port of a key. If the value is not an address with a port, the fault shows `example`.
    pub fn address(&self, reader: &mut Reader<'_>, key: &str, example: &str) -> Option<SocketAddr> {
        let text = self.text(reader, key)?;
        let address = text.get_ref().parse().ok();
        if address.is_none() {
            reader.fault(text.span(), format!("`{key}` must be an address and a port, such as \"{example}\""));
        }
        address
    }

    /// Returns the string of a key. Records a fault if the key is absent.
    pub fn required_text(&self, reader: &mut Reader<'_>, key: &str) -> Option<Spanned<&'a str>> {
        self.required(reader, key).and_then(|value| text(reader, value))
    }

    /// Returns the strings of a key, whose value is a list or a single string. Records a fault if the key is absent or
    /// the list is empty.
    pub fn required_texts(&self, reader: &mut Reader<'_>, key: &str) -> Vec<Spanned<&'a str>> {
        let Some(value) = self.required(reader, key) else { return Vec::new() };
        let list = texts(reader, value);
        if value.get_ref().as_array().is_some_and(|array| array.is_empty()) {
            reader.fault(value.span(), format!("`{key}` is empty"));
        }
        list
    }

    /// Returns the boolean value of a key; `false` if the key is absent.
    pub fn yes(&self, reader: &mut Reader<'_>, key: &str) -> bool {
        let Some(value) = self.value(key) else { return false };
        value.get_ref().as_bool().unwrap_or_else(|| {
            reader.fault(value.span(), format!("`{key}` must be true or false, without quotes"));
            false
        })
    }

    /// Returns the whole number of a key, or `default` if the key is absent. Records a fault if the number is not
    /// between `least` and `most`.
    pub fn number(&self, reader: &mut Reader<'_>, key: &str, default: u32, least: u32, most: u32) -> u32 {
        let Some(value) = self.value(key) else { return default };
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u32::from_str_radix(&n.as_str().replace('_', ""), n.radix()).ok());
        number.filter(|n| (least..=most).contains(n)).unwrap_or_else(|| {
            reader.fault(value.span(), format!("`{key}` must be a whole number from {least} to {most}"));
            default
        })
    }

    /// Returns the duration of a key (such as `90s`) in seconds, or `default` if the key is absent. Records a fault if
    /// the duration is not between `least` and `most`.
    pub fn seconds(&self, reader: &mut Reader<'_>, key: &str, default: u32, least: u32, most: u32) -> u32 {
        let Some(value) = self.value(key) else { return default };
        let Some(seconds) = value.get_ref().as_str().and_then(seconds) else {
            reader.fault(
                value.span(),
                format!("`{key}` must be a time such as \"90s\", \"5m\", \"1h\" or \"7d\", in quotes"),
            );
            return default;
        };
        if (least..=most).contains(&seconds) {
            return seconds;
        }
        let (least, most) = (duration(least), duration(most));
        reader.fault(value.span(), format!("`{key}` must be from {least} to {most}"));
        default
    }

    /// Returns the tables of `[[key]]`, whose keys are `known`. Messages use `what` as the name of such a table.
    pub fn tables(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
        what: &'static str,
        known: &[&str],
    ) -> Vec<Fields<'a, 't>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            reader.fault(value.span(), format!("{what} must begin with [[{key}]], in double brackets"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_table() {
                Some(table) => tables.push(Fields::new(reader, table, item.span(), what, known)),
                None => reader.fault(item.span(), format!("{what} must begin with [[{key}]]")),
            }
        }
        tables
    }

    /// Returns the tables of `key = { … }` or `key = [{ … }, …]`. For any other value, records a fault with the text
    /// `way_out`.
    pub fn inner_tables(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
        what: &'static str,
        known: &[&str],
        way_out: &str,
    ) -> Vec<Fields<'a, 't>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let items = match value.get_ref().as_array() {
            Some(array) if !array.is_empty() => array.iter().collect(),
            _ => vec![value],
        };
        let mut tables = Vec::new();
        for item in items {
            match item.get_ref().as_table() {
                Some(table) => tables.push(Fields::new(reader, table, item.span(), what, known)),
                None => reader.fault(item.span(), way_out),
            }
        }
        tables
    }
}

/// Returns the string, or records a fault if the value is not a string.
pub fn text<'a>(reader: &mut Reader<'_>, value: &'a Spanned<DeValue<'_>>) -> Option<Spanned<&'a str>> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        reader.fault(value.span(), format!("expected a string in quotes, not {}", value.get_ref().type_str()));
    }
    text.map(|text| Spanned::new(value.span(), text))
}

/// Returns a list of strings. A single string counts as a list of one.
pub fn texts<'a>(reader: &mut Reader<'_>, value: &'a Spanned<DeValue<'_>>) -> Vec<Spanned<&'a str>> {
    match value.get_ref().as_array() {
        Some(array) => array.iter().filter_map(|item| text(reader, item)).collect(),
        None => text(reader, value).into_iter().collect(),
    }
}

/// Parses a duration such as `90s`, `5m`, `1h` or `7d` to seconds; `None` if the text has another form or the number is
/// too large.
pub fn seconds(text: &str) -> Option<u32> {
    let unit = text.chars().last()?;
    let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
    number.checked_mul(match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    })
}

/// Formats a duration in the form that [`seconds`] parses.
pub fn duration(seconds: u32) -> String {
    match [(86_400, 'd'), (3600, 'h'), (60, 'm')]
        .into_iter()
        .find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit))
    {
        Some((unit, letter)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

/// Returns an addition to a message about the unknown name `name`. If a known name is similar, it is `; did you mean
/// …?`. Otherwise, if only a few names are known, it is the list of these names. Otherwise it is empty.
pub fn hint<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    let short = |name: &str| name.len() <= LONGEST_COMPARED;
    let known: Vec<_> = known.filter(|other| short(other)).take(MOST_COMPARED).collect();
    if !short(name) {
        return String::new();
    }
    let near = known.iter().map(|other| (strsim::levenshtein(name, other), *other)).min();
    match near {
        Some((away, other)) if away <= 1 + name.chars().count() / 3 => format!("; did you mean `{other}`?"),
        Some(_) if known.len() <= 12 => format!("; known: {}", known.join(", ")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        for (text, value) in [("90s", 90), ("5m", 300), ("1h", 3600), ("7d", 604_800)] {
            assert_eq!(seconds(text), Some(value));
            assert_eq!(duration(value), text);
        }
        assert_eq!(["", "5", "m", "-1s", "99999999d"].map(seconds), [None; 5]);
    }

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        assert_eq!(hint("servces", ["services", "name"].into_iter()), "; did you mean `services`?");
        assert_eq!(hint("zzz", ["services", "name"].into_iter()), "; known: services, name");
    }

    #[test]
    fn places_count_characters() {
        let reader = Reader::new("é = 1\nü = 2\n");
        assert_eq!(reader.place(0), (1, 1));
        assert_eq!(reader.place("é = 1\nü ".len()), (2, 3));
        assert_eq!(reader.place("é = 1\nü = 2\n".len()), (3, 1));
    }
}
