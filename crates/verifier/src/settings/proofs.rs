//! `[proofs]` of verifier.toml.

use super::{networks, texts};
use datapath::proofs::REMEMBERED;
use engine::document::{Fields, Reader};
use ipnet::IpNet;

pub(super) const KEYS: &[&str] = &["endpoints", "interface", "remembered"];

/// Where proofs are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofsSettings {
    /// The endpoints that this verifier stands before.
    pub endpoints: Vec<IpNet>,
    /// The interfaces that their packets come in on.
    pub interfaces: Vec<String>,
    /// How many proofs are remembered.
    pub remembered: u32,
}

impl ProofsSettings {
    /// Reads the table, if there is one.
    pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<Self> {
        let value = fields.value("proofs")?;
        let Some(table) = value.get_ref().as_table() else {
            reader.fault(value.span(), "`proofs` is a table: write it as `[proofs]`");
            return None;
        };
        let fields = Fields::new(reader, table, value.span(), "the section [proofs]", KEYS);
        for key in ["endpoints", "interface"] {
            fields.required(reader, key);
        }
        let endpoints = networks(reader, &fields, "endpoints");
        let interfaces = texts(reader, &fields, "interface");
        let empty = [("endpoints", endpoints.is_empty()), ("interface", interfaces.is_empty())];
        for key in empty.into_iter().filter(|(key, empty)| *empty && fields.value(key).is_some()) {
            reader.fault(fields.span(), format!("`{}` of [proofs] is empty", key.0));
        }
        let remembered = fields.number(reader, "remembered", REMEMBERED, 16, 1 << 24);
        Some(Self { endpoints: endpoints.iter().map(IpNet::trunc).collect(), interfaces, remembered })
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn a_verifier_of_proofs_has_endpoints_and_interfaces() {
        let read = |text: &str| parse(&format!("[proofs]\n{text}")).map(|(_, options)| options.settings().proofs);
        let one = read("endpoints = \"192.0.2.1\"\ninterface = \"eth1\"").expect("valid").expect("there");
        assert_eq!((one.endpoints[0].to_string().as_str(), one.remembered), ("192.0.2.1/32", super::REMEMBERED));
        for (text, fault) in [
            ("interface = \"eth1\"", "lacks the key `endpoints`"),
            ("endpoints = []\ninterface = \"eth1\"", "is empty"),
            ("endpoints = \"x\"\ninterface = \"eth1\"", "networks and addresses"),
            ("endpoints = \"::/0\"\ninterface = \"eth1\"\nremembered = 1", "from 16"),
        ] {
            let told = read(text).expect_err("a fault").to_string();
            assert!(told.contains(fault), "{text}: {told}");
        }
        assert!(parse("proofs = 1").is_err());
    }
}
