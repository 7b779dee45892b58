//! The table `[scores]` of authority.toml.

use crate::storage::ScoreTerms;
use engine::document::{Fields, Reader};

const KEYS: &[&str] = &["half_life", "low", "per_application"];
const DAY: u32 = 86_400;

/// Reads the table `[scores]` of authority.toml and reports its faults to `reader`. Returns `None` if the file has no
/// such table: the authority then keeps no scores.
pub(crate) fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<ScoreTerms> {
    let value = fields.value("scores")?;
    let Some(table) = value.get_ref().as_table() else {
        reader.fault(value.span(), "`scores` must be a table: write it as `[scores]`");
        return None;
    };
    let fields = Fields::new(reader, table, value.span(), "[scores]", KEYS);
    Some(ScoreTerms {
        half_life: fields.seconds(reader, "half_life", DAY, 10, 90 * DAY),
        low: fields.number(reader, "low", 50, 1, 100),
        per_application: fields.number(reader, "per_application", 200, 1, 1_000_000),
    })
}
