//! The verifier, the agent and the time with which all inputs run.

use engine::model::protected::{self, Protected};
use engine::model::{Receiver, Service};
use engine::verifier::Verifier;
use wire::map::{LsGrant, VerifierConfig};
use wire::{Carrier, ClientKey, Epoch, Holder, MasterKey, Pair, ServerSecret, VerifierKey, ls};

/// Start time of every run, as in the published vectors.
pub const NOW: u32 = 1_800_000_000;
/// Length of an epoch, in seconds.
pub const EPOCH_LENGTH: u32 = 3600;

/// The only pair of the published scheme that the verifier has.
pub const PAIR: Pair = Pair { unique_id: *b"alice", nonce1: [1, 2] };

/// Returns the client key of a pair, in the epoch at [`NOW`].
pub fn client_key(pair: Pair) -> ClientKey {
    let key = verifier_key(Epoch::at(NOW.into(), EPOCH_LENGTH));
    ClientKey::of(pair, ServerSecret::of(&key).expect("a length that fits").bytes())
}

/// Returns the verifier's key of an epoch.
pub fn verifier_key(epoch: Epoch) -> VerifierKey {
    let master = MasterKey::new(std::array::from_fn(|index| index as u8));
    master.verifier_key("edge-1", epoch).expect("the id is short")
}

/// Returns the protected destinations, in both families: a server with two protected ports, a server with all ports,
/// and a network with a span of ports.
pub fn protected() -> Vec<Protected> {
    let two_ports: &[_] = &[(6, 22, 22), (17, 443, 443)];
    let all: &[_] = &[(0, 0, u16::MAX)];
    let span: &[_] = &[(6, 8000, 8100)];
    let receivers = [
        receiver("203.0.113.10/32", two_ports),
        receiver("203.0.113.20/32", all),
        receiver("203.0.113.128/25", span),
        receiver("2001:db8::10/128", two_ports),
        receiver("2001:db8::20/128", all),
        receiver("2001:db8:0:1::/64", span),
    ];
    protected::entries(&receivers).expect("few spans")
}

fn receiver(prefix: &str, services: &[(u8, u16, u16)]) -> Receiver {
    let service = |&(protocol, first_port, last_port): &(u8, u16, u16)| Service { protocol, first_port, last_port };
    Receiver {
        name: prefix.to_owned(),
        prefix: prefix.parse().expect("a prefix"),
        services: services.iter().map(service).collect(),
    }
}

/// Returns a verifier that accepts every suite, and tokens by `tail` and `shim`, with small limits. The verifier has
/// the keys of the epochs around [`NOW`]: on each side, one more epoch than it accepts.
pub fn verifier() -> Verifier {
    let default = VerifierConfig::default();
    let config = VerifierConfig {
        flows_per_grant: 2,
        flows_per_account: 3,
        grants_per_account: 4,
        epoch_length: EPOCH_LENGTH,
        carriers: Carrier::Tail as u16 | Carrier::Shim as u16,
        suites: default.suites | 1 << ls::SUITE,
        ..default
    };
    let current = Epoch::at(NOW.into(), EPOCH_LENGTH);
    let pairs = [(PAIR.handle(), LsGrant::new(current.0, NOW + 300, Holder(9)))].into();
    let keys = (current.0 - 2..=current.0 + 2).map(|number| (Epoch(number), verifier_key(Epoch(number)))).collect();
    Verifier { config, protected: protected(), keys, ls_grants: pairs, ..Verifier::default() }
}
