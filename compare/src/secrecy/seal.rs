//! Vouchsafe's sealed tunnels. The long-term key is the authority's master key, from which every grant's key follows.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use wire::seal::{Handshake, INITIATION_LEN, Initiation, RESPONSE_LEN, Shared};
use wire::{Destination, Epoch, MasterKey};

use super::{Attempt, payloads};
use crate::measure::emulator::Seen;

/// Length of an epoch in seconds, the authority's default.
const EPOCH: u32 = 3600;

/// Tries to open a recorded session with the authority's master key, from which the key of the client's grant can be
/// computed.
///
/// # Errors
/// Fails if no handshake was recorded, or if the recorded initiation is malformed or was made with another master key.
pub fn attempt(
    frames: &[Seen],
    (gateway, port): (IpAddr, u16),
    client: IpAddr,
    verifier: &str,
    master: &MasterKey,
) -> Result<Attempt> {
    let packets = payloads(frames, port);
    let first = packets.iter().rfind(|(to_gateway, packet)| *to_gateway && packet.first() == Some(&1));
    let first: &[u8; INITIATION_LEN] =
        first.and_then(|(_, packet)| packet.first_chunk()).context("no initiation was recorded")?;
    let answer = packets.iter().rfind(|(to_gateway, packet)| !to_gateway && packet.first() == Some(&2));
    let answer: &[u8; RESPONSE_LEN] =
        answer.and_then(|(_, packet)| packet.first_chunk()).context("no response was recorded")?;
    let initiation = Initiation::read(first, false).ok().context("the recorded initiation is malformed")?;
    let to = Destination { address: gateway, protocol: 17, port };
    let now = Epoch::at(initiation.time.into(), EPOCH);
    let epoch = now.from_wire(initiation.grant.epoch).unwrap_or(now);
    let key = master.verifier_key(verifier, epoch).context("the verifier's name is too long")?;
    let key = initiation.grant.key(&key, &to, client);
    ensure!(
        initiation.is_proved(first, &key, &to),
        "the grant's key that follows from this master key does not prove the recorded initiation"
    );
    let handshake = Handshake::new(&key, first, &to);
    let early = handshake.early().is_some();
    let opened = handshake.take(answer, &Shared::none()).is_some();
    let evidence = format!(
        "the grant's key, computed from the master key, proves the recorded initiation{}; the response and the keys \
         of the session {} from the grant's key",
        if early { " and opens records sent before the response" } else { "" },
        if opened { "follow" } else { "do not follow" }
    );
    Ok(Attempt { opened, evidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame with a UDP datagram, as the observer sees it.
    fn seen(to_gateway: bool, payload: &[u8]) -> Seen {
        let [source, destination] = ["10.0.0.2", "10.0.0.1"].map(|text| text.parse().unwrap());
        let (source, destination, ports) =
            if to_gateway { (source, destination, (7, 4499)) } else { (destination, source, (4499, 7)) };
        let packet = lab::forge::Packet::new(source, destination).ethernet([2; 6], [4; 6]);
        Seen { to_gateway, frame: packet.udp(ports.0, ports.1).payload(payload).frame() }
    }

    #[test]
    fn without_an_exchange_of_keys_the_session_opens_and_with_one_it_does_not() {
        use wire::seal::{Index, Offer, Response, Suites};
        use wire::{Flags, GrantHeader, Handle, Suite};
        let (gateway, client): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let master = || MasterKey::new([7; 32]);
        let time = 1_800_000_000;
        let epoch = Epoch::at(time.into(), EPOCH);
        let to = Destination { address: gateway, protocol: 17, port: 4499 };
        let grant = GrantHeader {
            suite: Suite::Siphash,
            flags: Flags::PORT,
            epoch: epoch.on_wire(),
            prefix_length: 32,
            expires: time + 300,
            handle: Handle(5),
        };
        let key = grant.key(&master().verifier_key("edge", epoch).unwrap(), &to, client);
        for (forward, shared) in [(false, Shared::none()), (true, Shared::new([9; 32]).unwrap())] {
            let offer = Offer { forward, suites: Suites(1), helped: Suites(0) };
            let index = |number| Index::new(number).unwrap();
            let initiation = Initiation { offer, index: index(3), time, grant, share: [1; 32] }.seal(&key, &to);
            let response = Response { offer, to: index(3), given: Ok((index(4), [2; 32])) };
            let (response, _) = Handshake::new(&key, &initiation, &to).respond(&response, &shared).unwrap();
            let frames = [seen(true, &initiation), seen(false, &response)];
            let attempt = attempt(&frames, (gateway, 4499), client, "edge", &master()).unwrap();
            assert_eq!(attempt.opened, !forward, "{}", attempt.evidence);
            assert!(super::attempt(&frames, (gateway, 4499), client, "edge", &MasterKey::new([8; 32])).is_err());
        }
    }
}
