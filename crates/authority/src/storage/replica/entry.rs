//! Entries of the cluster's log, and their encoding: compressed JSON.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The level of the compression. This level is fast, because the other members wait for the entry.
const LEVEL: i32 = 3;
/// Maximum length, in bytes, of what an entry or a piece of a snapshot is decompressed to.
const PLAIN_MAX: usize = 256 << 20;

/// The random identity of an entry. It distinguishes two entries that have the same number.
pub(super) type EntryId = [u8; 16];

/// A committed transaction of one member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(with = "bytes")]
    pub id: Vec<u8>,
    /// The id of the previous entry.
    #[serde(with = "bytes")]
    pub before: Vec<u8>,
    /// The name of the member that committed the transaction.
    pub member: String,
    /// Time of the transaction, in Unix seconds.
    pub time: u64,
    /// The format in which the entry is written: the oldest database format of any member of the cluster.
    pub schema: i64,
    /// Whether other members must act on the entry at once, because it ends or changes what is allowed.
    pub urgent: bool,
    /// Whether the entry changes what decisions depend on.
    pub decisive: bool,
    pub blocks: Vec<Block>,
    /// The rows that the transaction added to the member's own audit trails. Other members ignore them. The member
    /// itself needs them if its process ended before the commit.
    pub audit: Vec<Vec<Value>>,
}

/// Changes of the same kind in one table.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    pub table: String,
    pub kind: Kind,
    /// The columns of `rows`. For [`Kind::Set`] and [`Kind::Delete`], the columns of the primary key come first.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// A whole new row.
    Put,
    /// Changed columns of a row.
    Set,
    /// A deleted row.
    Delete,
}

/// A value of SQLite.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Text(String),
    Blob {
        #[serde(with = "bytes")]
        b: Vec<u8>,
    },
    /// The bits of a floating-point number, because its decimal form may be rounded.
    Real {
        r: u64,
    },
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Integer(value),
            ValueRef::Real(value) => Self::Real { r: value.to_bits() },
            // All text comes from strings of this program.
            ValueRef::Text(text) => Self::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(blob) => Self::Blob { b: blob.to_vec() },
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Integer(value) => ToSqlOutput::Borrowed(ValueRef::Integer(*value)),
            Self::Real { r } => ToSqlOutput::Borrowed(ValueRef::Real(f64::from_bits(*r))),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Blob { b } => ToSqlOutput::Borrowed(ValueRef::Blob(b)),
        })
    }
}

/// Bytes as base64 in JSON.
mod bytes {
    use super::{Deserialize, Deserializer, Engine, STANDARD_NO_PAD, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD_NO_PAD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD_NO_PAD.decode(text).map_err(serde::de::Error::custom)
    }
}

/// Encodes an entry, or a piece of a snapshot. The result is the length of the JSON in four bytes, followed by the
/// compressed JSON.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    let plain = serde_json::to_vec(value)?;
    ensure!(plain.len() <= PLAIN_MAX, "the change is too large for the cluster's log");
    let mut packed = vec![0; 4 + zstd_safe::compress_bound(plain.len())];
    packed[..4].copy_from_slice(&u32::try_from(plain.len())?.to_be_bytes());
    let length = zstd_safe::compress(&mut packed[4..], &plain, LEVEL).map_err(|code| {
        anyhow::anyhow!("cannot compress data for the cluster's log: {}", zstd_safe::get_error_name(code))
    })?;
    packed.truncate(4 + length);
    Ok(packed)
}

/// Decodes a value that [`encode`] has encoded.
pub(super) fn decode<T: for<'de> Deserialize<'de>>(packed: &[u8]) -> Result<T> {
    let (length, packed) = packed.split_first_chunk::<4>().context("an entry of the cluster's log is too short")?;
    let length = u32::from_be_bytes(*length) as usize;
    ensure!(length <= PLAIN_MAX, "an entry of the cluster's log is too long");
    let mut plain = vec![0; length];
    let written = zstd_safe::decompress(&mut plain[..], packed)
        .map_err(|code| anyhow::anyhow!("cannot decompress: {}", zstd_safe::get_error_name(code)))?;
    ensure!(written == length, "an entry of the cluster's log is incomplete");
    serde_json::from_slice(&plain).context("an entry of the cluster's log has an unknown form")
}

/// Adds a row to the last block if this block has the same table, kind and columns. Otherwise, adds it to a new block.
pub(super) fn push(blocks: &mut Vec<Block>, table: &str, kind: Kind, columns: Vec<String>, row: Vec<Value>) {
    match blocks.last_mut() {
        Some(last) if last.table == table && last.kind == kind && last.columns == columns => last.rows.push(row),
        _ => blocks.push(Block { table: table.into(), kind, columns, rows: vec![row] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_comes_back_as_it_was() {
        let values = [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX),
            Value::Real { r: 0.1_f64.to_bits() },
            Value::Real { r: f64::NEG_INFINITY.to_bits() },
            Value::Text("ein \"Wort\"\n\u{0}".into()),
            Value::Text(String::new()),
            Value::Blob { b: vec![0, 255, 1] },
            Value::Blob { b: Vec::new() },
        ];
        let packed = encode(&values.to_vec()).unwrap();
        assert_eq!(decode::<Vec<Value>>(&packed).unwrap(), values);
        for length in 0..packed.len() {
            assert!(decode::<Vec<Value>>(&packed[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn many_changes_of_one_kind_take_little_room() {
        let mut blocks = Vec::new();
        for handle in 0..10_000_i64 {
            let row =
                vec![Value::Integer(handle.wrapping_mul(0x1e37_79b9_7f4a_7c15)), Value::Integer(1), Value::Integer(0)];
            push(&mut blocks, "grants", Kind::Set, ["handle", "revoked", "announced"].map(String::from).into(), row);
        }
        assert_eq!(blocks.len(), 1);
        let packed = encode(&blocks).unwrap();
        assert!(packed.len() < 200_000, "{}", packed.len());
    }
}
