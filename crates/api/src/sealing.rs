//! Demands for a flow's packets in a sealed tunnel, and the addresses at which tunnels begin (wire.md §9).

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The demand of a rule. A sender may do more, never less; one that does not know a word here sends nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sealing {
    /// The least treatment: `none`, `authenticate` or `encrypt`.
    pub treatment: String,
    /// Compression: `never`, `auto` or `always`; missing if the rule leaves it to the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress: Option<String>,
    /// The suites that may seal the packets.
    pub suites: Vec<String>,
    /// Whether keys come from an exchange, so that a later theft of the grant's key reveals nothing.
    pub forward_secrecy: bool,
    /// The age at which keys are renewed, seconds.
    pub rekey: u32,
}

/// The sealed tunnels of the grant's verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantSealing {
    /// The rule's demand.
    #[serde(flatten)]
    pub demand: Sealing,
    /// Addresses and UDP ports at which the verifier's tunnel begins, one for each family at most. A grant for one of
    /// them opens it.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, example = json!(["203.0.113.10:4499"])))]
    pub tunnels: Vec<SocketAddr>,
}

/// How a flow's packets travel in a sealed tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SealedFlow {
    /// `authenticate` or `encrypt`; missing if the verifier does not know yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub treatment: Option<String>,
    /// The suite of the latest record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// Bytes of packets for each 100 bytes that they took in records: 250 if compression made them 2.5 times shorter.
    /// Missing if nothing is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::form::some_whole")]
    #[cfg_attr(feature = "schema", schema(maximum = 4294967295_i64))]
    pub ratio: Option<u32>,
}

impl SealedFlow {
    /// Returns it in words, such as `encrypt, aes-128-gcm, 2.5:1`.
    pub fn words(&self) -> String {
        let ratio = self.ratio.map(|ratio| format!("{}.{}:1", ratio / 100, ratio % 100 / 10));
        let treatment = self.treatment.clone().unwrap_or_else(|| "sealed".to_owned());
        [Some(treatment), self.suite.clone(), ratio].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_flow_is_told_in_words() {
        let (treatment, suite) = (Some("encrypt".to_owned()), Some("aes-128-gcm".to_owned()));
        assert_eq!(SealedFlow { treatment, suite, ratio: Some(257) }.words(), "encrypt, aes-128-gcm, 2.5:1");
        assert_eq!(SealedFlow::default().words(), "sealed");
    }

    #[test]
    fn an_unknown_key_is_a_fault() {
        assert!(serde_json::from_str::<SealedFlow>(r#"{"treatment":"encrypt","colour":1}"#).is_err());
        assert_eq!(serde_json::from_str::<SealedFlow>(r#"{"ratio":250.0}"#).unwrap().ratio, Some(250));
        assert!(serde_json::from_str::<SealedFlow>(r#"{"ratio":2.5}"#).is_err());
    }
}
