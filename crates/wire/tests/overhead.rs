//! docs/overhead.md agrees with the sizes of the codec's headers and the offsets in a packet.

#[path = "../benches/overhead/rows.rs"]
mod rows;

use rows::{ETHERNET, IPV4, IPV6, UDP, rows};
use wire::geneve::{Encapsulation, PORT, Payload};
use wire::packet::{Form, Packet};

#[test]
fn the_document_says_what_is_computed() {
    let table = rows::table(&rows());
    let document = include_str!("../../../docs/overhead.md");
    assert!(document.contains(&table), "the table should be\n{table}");
}

#[test]
fn the_inner_packet_begins_where_the_headers_say() {
    for (name, header, encapsulation) in [
        ("geneve_1", IPV4, rows::geneve(Payload::Ipv4, 1)),
        ("geneve_3", IPV4, rows::geneve(Payload::Ipv4, 3)),
        ("geneve6_2", IPV6, rows::geneve(Payload::Ipv4, 2)),
    ] {
        let udp = UDP + encapsulation.len() + 40;
        let mut frame = vec![0; 12];
        if header == IPV4 {
            frame.extend([0x08, 0x00, 0x45, 0, 0, (IPV4 + udp) as u8, 0, 0, 0, 0, 64, 17, 0, 0]);
            frame.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, udp as u8, 17, 64]);
            frame.extend([0x20; 32]);
        }
        frame.extend([&1234_u16.to_be_bytes()[..], &PORT.to_be_bytes(), &(udp as u16).to_be_bytes(), &[0, 0]].concat());
        frame.extend(&encapsulation);
        frame.extend([0; 40]);
        let packet = Packet::parse(&frame);
        assert_eq!((packet.form, packet.destination_port), (Form::Whole, PORT), "{name}");
        let (_, inner) = Encapsulation::decode(&frame[packet.payload..packet.end]).expect("it is well formed");
        let row = rows().into_iter().find(|row| row.name == name).expect("a row");
        assert_eq!(frame.len() - inner.len(), ETHERNET + row.added(), "{name}");
    }
}
