//! Demands on the sealed tunnel in which a flow's packets travel, and the addresses at which tunnels begin (wire.md
//! §9).

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A rule's demands on the sealed tunnel in which packets travel. A sender is allowed to protect packets more than
/// demanded, but never less. A sender that does not know a word in one of these fields sends nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sealing {
    /// The least treatment that a sealed packet must have: `none`, `authenticate` or `encrypt`.
    pub treatment: String,
    /// Whether packets are compressed: `never`, `auto` or `always`; missing if the rule leaves this to the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress: Option<String>,
    /// The suites that are allowed to seal the packets.
    pub suites: Vec<String>,
    /// Whether the tunnel's keys come from a key exchange, so that a later theft of the grant key does not reveal
    /// earlier packets.
    pub forward_secrecy: bool,
    /// The age at which the tunnel's keys are renewed, in seconds.
    pub rekey: u32,
}

/// A grant's information about sealed tunnels: the rule's demands, and the tunnels of the grant's verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantSealing {
    /// The rule's demands.
    #[serde(flatten)]
    pub demand: Sealing,
    /// Addresses and UDP ports at which the verifier's tunnel begins: at most one per address family. To open the
    /// tunnel, an agent needs a grant for one of them.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, example = json!(["203.0.113.10:4499"])))]
    pub tunnels: Vec<SocketAddr>,
}

/// Treatment, suite and compression of a flow whose packets travel in a sealed tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SealedFlow {
    /// The treatment: `authenticate` or `encrypt`; missing if the verifier does not know it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub treatment: Option<String>,
    /// The suite that sealed the latest record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// The compression ratio in hundredths: the size of the flow's packets that were compressed, in both directions,
    /// divided by their size in records. A value of 250 means that compression made the packets 2.5 times shorter.
    /// Missing if no packet was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::form::some_whole")]
    #[cfg_attr(feature = "schema", schema(maximum = 4294967295_i64))]
    pub ratio: Option<u32>,
}

impl SealedFlow {
    /// Describes the flow's sealing in words, such as `encrypt, aes-128-gcm, 2.5:1`.
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
