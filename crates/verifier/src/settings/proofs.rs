//! The section `[proofs]` of `verifier.toml`: settings for checking proofs.

use super::file::{networks, texts, word};
use datapath::proofs::REMEMBERED;
use engine::document::{Fields, Reader};
use ipnet::IpNet;

pub(super) const KEYS: &[&str] = &["endpoints", "engine", "interface", "remembered"];

/// The engine that checks proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// A kernel program at XDP.
    #[default]
    Xdp,
    /// A thread through which frames cross between two interfaces (AF_XDP).
    AfXdp,
}

/// Settings for checking proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofsSettings {
    /// The engine that checks proofs.
    pub engine: Engine,
    /// The endpoints behind this verifier.
    pub endpoints: Vec<IpNet>,
    /// Names of the interfaces on which packets to the endpoints arrive.
    pub interfaces: Vec<String>,
    /// Maximum number of verified proofs that are remembered.
    pub remembered: u32,
}

impl ProofsSettings {
    /// Parses the table `[proofs]`; `None` if there is none, or if it has faults.
    pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<Self> {
        let value = fields.value("proofs")?;
        let Some(table) = value.get_ref().as_table() else {
            reader.fault(value.span(), "`proofs` must be a table: write it as `[proofs]`");
            return None;
        };
        let fields = Fields::new(reader, table, value.span(), "[proofs]", KEYS);
        for key in ["endpoints", "interface"] {
            fields.required(reader, key);
        }
        let endpoints = networks(reader, &fields, "endpoints");
        let interfaces = texts(reader, &fields, "interface");
        let empty = [("endpoints", endpoints.is_empty()), ("interface", interfaces.is_empty())];
        for key in empty.into_iter().filter(|(key, empty)| *empty && fields.value(key).is_some()) {
            reader.fault(fields.span(), format!("`{}` of [proofs] is empty", key.0));
        }
        let engine = word(reader, &fields, "engine", |text| match text {
            "xdp" => Ok(Engine::Xdp),
            "af_xdp" => Ok(Engine::AfXdp),
            _ => Err("\"xdp\" or \"af_xdp\"".to_owned()),
        });
        let engine = engine.unwrap_or_default();
        if engine == Engine::AfXdp {
            if interfaces.len() != 2 || interfaces[0] == interfaces[1] {
                reader.fault(
                    fields.span(),
                    "`engine = \"af_xdp\"` requires two different interfaces, between which frames cross",
                );
            }
            if fields.value("remembered").is_some() {
                reader.fault(
                    fields.span(),
                    "`remembered` requires `engine = \"xdp\"`: the other engine remembers no proofs",
                );
            }
        }
        let remembered = fields.number(reader, "remembered", REMEMBERED, 16, 1 << 24);
        Some(Self { engine, endpoints: endpoints.iter().map(IpNet::trunc).collect(), interfaces, remembered })
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
        let two = read("endpoints = \"::/0\"\ninterface = [\"a\", \"b\"]\nengine = \"af_xdp\"").expect("valid");
        assert_eq!((one.engine, two.expect("there").engine), (super::Engine::Xdp, super::Engine::AfXdp));
        for (text, fault) in [
            ("interface = \"eth1\"", "missing key `endpoints`"),
            ("endpoints = []\ninterface = \"eth1\"", "is empty"),
            ("endpoints = \"x\"\ninterface = \"eth1\"", "networks and addresses"),
            ("endpoints = \"::/0\"\ninterface = \"eth1\"\nremembered = 1", "from 16"),
            ("endpoints = \"::/0\"\ninterface = \"eth1\"\nengine = \"dpdk\"", "\"af_xdp\""),
            ("endpoints = \"::/0\"\ninterface = \"eth1\"\nengine = \"af_xdp\"", "two different interfaces"),
            ("endpoints = \"::/0\"\ninterface = [\"a\", \"a\"]\nengine = \"af_xdp\"", "two different interfaces"),
            (
                "endpoints = \"::/0\"\ninterface = [\"a\", \"b\"]\nengine = \"af_xdp\"\nremembered = 64",
                "requires `engine",
            ),
        ] {
            let message = read(text).expect_err("a fault").to_string();
            assert!(message.contains(fault), "{text}: {message}");
        }
        assert!(parse("proofs = 1").is_err());
    }
}
