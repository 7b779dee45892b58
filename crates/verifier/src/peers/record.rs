//! The protocol between gateways, in bytes: frames of records, and a reply to each frame. Records have a fixed length.
//! Integers are little-endian. Times are sent relative to the present, because the gateways' clocks differ.

use crate::lessees::Lessee;
use wire::map::{Flow, FlowKey, address_bytes, address_of, origin, stage};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Largest number of records in a frame.
pub const RECORDS_MAX: usize = 256;
/// Version of this protocol: 4. Earlier versions lack fields. Version 2 has no byte for tunnels, so a gateway with
/// version 2 would mistake a flow inside a tunnel for a flow outside. Version 3 does not name the client to which the
/// inside address of a flow in a tunnel belongs.
pub const VERSION: [u8; 8] = *b"VSFPEER4";

/// The first message that each gateway sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// Version of the protocol: [`VERSION`].
    pub version: [u8; 8],
    /// Random number that identifies the sending process.
    pub id: U64,
}

/// Header of a frame: a message with up to [`RECORDS_MAX`] flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Head {
    /// Number of the frame, repeated in the reply.
    pub number: U64,
    /// Number of records that follow, at most [`RECORDS_MAX`].
    pub records: U32,
    /// 1 if the frame completes the first pass over all flows, otherwise 0.
    pub whole: U32,
}

/// Reply to a frame, sent once its flows are in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// Number of the frame to which this message replies.
    pub number: U64,
    /// Number of the frame's flows that are now in the receiver's tables.
    pub taken: U32,
    /// Number of the frame's flows that the receiver refused.
    pub refused: U32,
}

/// A flow in the form in which gateways send it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    client: [u8; 16],
    server: [u8; 16],
    client_port: [u8; 2],
    server_port: [u8; 2],
    protocol: u8,
    family: u8,
    origin: u8,
    stage: u8,
    /// 1 if a receiver whose table does not contain the flow has to create the flow, otherwise 0.
    begins: u8,
    /// 1 if the flow is inside a sealed tunnel, otherwise 0.
    tunnel: u8,
    inside_port: [u8; 2],
    handle: U64,
    age: U32,
    idle: U32,
    left: U32,
    holder: U32,
    next: U32,
    answer: U32,
    /// Seconds since the flow's last token arrived; all bits set if no token is on record.
    proved: U32,
    /// Account and session of the client in the tunnel; 0 if the flow is outside of tunnels, or if the sender does not
    /// know the client.
    lessee: U32,
    /// For a flow outside of tunnels: the client's inside address, or zeros if the client has none. For a flow in a
    /// tunnel: the client's own address in the tunnel.
    inside: [u8; 16],
    /// Name of the person who has the inside address; zeros if there is no inside address.
    person: [u8; 64],
}

/// The inside address of a flow's client and the person who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The address, in the form of the kernel maps.
    pub address: [u8; 16],
    /// The person who has the address.
    pub person: String,
}

/// A flow as one gateway advertises it to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedFlow {
    /// The flow's key.
    pub key: FlowKey,
    /// The flow's state. Records do not contain the slot of its inside address, because slots are different at each
    /// gateway.
    pub flow: Flow,
    /// Time at which the flow's grant ends, Unix seconds.
    pub expires: u32,
    /// Whether the receiving gateway has to create the flow if its table does not contain the flow.
    pub begins: bool,
    /// For a flow outside of tunnels: the inside address of the flow's client, if the client has one.
    pub inside: Option<Inside>,
    /// If the flow is in a tunnel: the client to which the flow's client address is assigned.
    pub lessee: Option<Lessee>,
}

impl Record {
    /// Encodes a flow. `now` is the current time, Unix seconds. Returns `None` if the person's name is too long.
    pub fn of(advertised: &AdvertisedFlow, now: u32) -> Option<Self> {
        let AdvertisedFlow { key, flow, expires, begins, inside, lessee } = advertised;
        let mut person = [0; 64];
        if let Some(inside) = inside {
            person.get_mut(..inside.person.len())?.copy_from_slice(inside.person.as_bytes());
        }
        Some(Self {
            client: key.client,
            server: key.server,
            client_port: key.client_port,
            server_port: key.server_port,
            protocol: key.protocol,
            family: key.family,
            origin: flow.origin,
            stage: flow.stage,
            begins: (*begins).into(),
            tunnel: key.tunnel,
            inside_port: flow.inside_port,
            handle: flow.handle.into(),
            age: now.saturating_sub(flow.since).into(),
            idle: now.saturating_sub(flow.seen).into(),
            left: expires.saturating_sub(now).into(),
            holder: flow.holder.into(),
            next: flow.next.into(),
            answer: flow.answer.into(),
            proved: if flow.proved == 0 { U32::MAX_VALUE } else { now.saturating_sub(flow.proved).into() },
            lessee: lessee.map_or(0, |lessee| lessee.holder).into(),
            inside: match (inside, lessee) {
                (_, Some(lessee)) => address_bytes(lessee.address),
                (Some(inside), None) => inside.address,
                (None, None) => [0; 16],
            },
            person,
        })
    }

    /// Decodes the record. `now` is the current time, Unix seconds. Returns `None` if the record is invalid.
    pub fn decode(&self, now: u32) -> Option<AdvertisedFlow> {
        let known = matches!(self.family, 4 | 6) && matches!(self.origin, origin::TOKEN | origin::INSIDE);
        if !known
            || self.tunnel > 1
            || self.stage > stage::RESET
            || (self.handle == 0) != (self.origin == origin::INSIDE)
            || self.lessee != 0 && self.tunnel == 0
        {
            return None;
        }
        let person = self.person.split(|byte| *byte == 0).next().unwrap_or_default();
        let address = address_of(self.inside, self.family);
        let lessee = (self.lessee != 0).then_some(Lessee { holder: self.lessee.get(), address });
        let inside = match self.inside == [0; 16] || self.tunnel == 1 {
            true => None,
            false => Some(Inside { address: self.inside, person: std::str::from_utf8(person).ok()?.to_owned() }),
        };
        let key = FlowKey {
            client: self.client,
            server: self.server,
            client_port: self.client_port,
            server_port: self.server_port,
            protocol: self.protocol,
            family: self.family,
            tunnel: self.tunnel,
            reserved: 0,
        };
        let flow = Flow {
            handle: self.handle.get(),
            since: now.saturating_sub(self.age.get()),
            seen: now.saturating_sub(self.idle.get()),
            stage: self.stage,
            origin: self.origin,
            inside_port: self.inside_port,
            holder: self.holder.get(),
            next: self.next.get(),
            answer: self.answer.get(),
            proved: if self.proved == U32::MAX_VALUE { 0 } else { now.saturating_sub(self.proved.get()) },
            ..Flow::default()
        };
        let expires = now.saturating_add(self.left.get());
        Some(AdvertisedFlow { key, flow, expires, begins: self.begins == 1, inside, lessee })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertised() -> AdvertisedFlow {
        let address = |text: &str| text.parse().expect("an address");
        AdvertisedFlow {
            key: FlowKey::new(address("198.51.100.7"), 40_000, address("203.0.113.10"), 22, 6),
            flow: Flow {
                handle: 7,
                since: 900,
                seen: 990,
                stage: 2,
                inside_port: [1, 2],
                holder: 0x501,
                next: 77,
                answer: 88,
                ..Flow::default()
            },
            expires: 1300,
            begins: true,
            inside: Some(Inside { address: [9; 16], person: "alice".into() }),
            lessee: None,
        }
    }

    #[test]
    fn the_client_of_a_flow_in_a_tunnel_is_read_as_it_was_advertised() {
        for (client, own) in [("100.127.3.4", "192.168.1.2"), ("fd56:5346::9", "fd01::1")] {
            let [client, own]: [std::net::IpAddr; 2] = [client, own].map(|text| text.parse().expect("an address"));
            let server = if client.is_ipv4() { "203.0.113.10" } else { "2001:db8::10" };
            let key = FlowKey::new(client, 40_000, server.parse().expect("an address"), 22, 6).within(true);
            let lessee = Some(Lessee { holder: 0x501, address: own });
            let flow = AdvertisedFlow { key, inside: None, lessee, ..advertised() };
            let record = Record::of(&flow, 1000).expect("a record");
            assert_eq!(record.decode(1000), Some(flow));
            assert_eq!(Record { tunnel: 0, ..record }.decode(1000), None, "outside there are no such clients");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_advertised_by_a_clock_that_differs() {
        let record = Record::of(&advertised(), 1000).expect("a short name");
        let received = record.decode(5000).expect("a flow");
        assert_eq!((received.flow.since, received.flow.seen, received.expires), (4900, 4990, 5300));
        assert_eq!(record.decode(1000), Some(advertised()));
        assert_eq!(size_of::<Record>(), 164);
    }

    #[test]
    fn the_time_of_a_token_travels_as_its_age() {
        let proved = |proved| AdvertisedFlow { flow: Flow { proved, ..advertised().flow }, ..advertised() };
        let received =
            |flow| Record::of(&flow, 1000).and_then(|record| record.decode(5000)).map(|decoded| decoded.flow.proved);
        assert_eq!((received(proved(980)), received(proved(0))), (Some(4980), Some(0)));
    }

    #[test]
    fn what_no_gateway_advertises_is_no_flow() {
        let record = Record::of(&advertised(), 1000).expect("a short name");
        for broken in [
            Record { family: 5, ..record },
            Record { origin: origin::ADOPTED, ..record },
            Record { origin: origin::INSIDE, ..record },
            Record { handle: 0.into(), ..record },
            Record { stage: 4, ..record },
            Record { tunnel: 2, ..record },
            Record { person: [0xff; 64], ..record },
        ] {
            assert_eq!(broken.decode(1000), None, "{broken:?}");
        }
        let long = Inside { address: [9; 16], person: "a".repeat(65) };
        assert_eq!(Record::of(&AdvertisedFlow { inside: Some(long), ..advertised() }, 1000), None);
    }

    /// Arbitrary bytes are either rejected or read as a record that encodes to the same bytes again, if its times fit.
    #[test]
    fn any_bytes_are_read_without_harm() {
        let mut state = 1u64;
        for _ in 0..10_000 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Use mostly small values, so that some records are valid.
                if state >> 62 == 0 { (state >> 33) as u8 } else { (state >> 40) as u8 & 6 }
            })
            .take(size_of::<Record>())
            .collect();
            let record = Record::read_from_bytes(&bytes).expect("the length fits");
            if let Some(decoded) = record.decode(u32::MAX) {
                let again = Record::of(&decoded, u32::MAX).expect("what was read fits").decode(u32::MAX);
                assert_eq!(again, Some(decoded));
            }
        }
    }
}
