//! Properties that hold for every input: decoders refuse the input or return what was encoded, parsing stays inside the
//! frame, and the carriers leave no trace once they are stripped (wire.md §4.5).

mod frames;

use frames::{Checksum, frame, frames, transport_sum};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::checksum;
use wire::grant::{HEADER_LEN, VERSION, mask};
use wire::ls::KeyTransfer;
use wire::packet::{Form, Fragment, Packet};
use wire::shim::{self, Content, OPTION_LEN, SHIM_LEN};
use wire::tail::{self, BLOCK_LEN, FAST_OPEN_ADDS};
use wire::token::TOKEN_LEN;
use wire::{
    Carrier, ClientKey, Destination, DropReason, Epoch, Flags, GrantHeader, GrantKey, Handle, LsToken, Pair, Suite,
    Token, VerifierKey,
};

fn headers() -> impl Strategy<Value = GrantHeader> {
    let suites = prop_oneof![Just(Suite::AesCmac), Just(Suite::Siphash)];
    (suites, 0u8..128, any::<u8>(), 0u8..=128, any::<u32>(), any::<u64>()).prop_map(
        |(suite, flags, epoch, prefix_length, expires, handle)| {
            let flags = Flags(flags);
            let longest = if flags.has(Flags::IPV6) { 128 } else { 32 };
            let prefix_length = prefix_length.min(longest);
            GrantHeader { suite, flags, epoch, prefix_length, expires, handle: Handle(handle) }
        },
    )
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_header_is_decoded_as_it_was_encoded(header in headers()) {
        prop_assert_eq!(GrantHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_decoded_header_encodes_to_the_same_bytes(mut bytes: [u8; HEADER_LEN], likely: bool) {
        if likely {
            bytes[0] = VERSION << 4 | bytes[0] & 15;
            bytes[1] &= 0x3f;
            bytes[3] %= 40;
        }
        match GrantHeader::decode(&bytes) {
            Ok(header) => prop_assert_eq!(header.encode(), bytes),
            Err(reason) => prop_assert!(matches!(reason, DropReason::Malformed | DropReason::UnknownSuite)),
        }
    }

    #[test]
    fn a_token_is_decoded_as_it_was_encoded(header in headers(), time: u32, nonce: u32, tag: [u8; 12]) {
        let token = Token { header, time, nonce, tag };
        let ipv6 = header.flags.has(Flags::IPV6);
        let bearer = header.flags.has(Flags::BEARER);
        let expected = if bearer { Err(DropReason::Malformed) } else { Ok(token) };
        prop_assert_eq!(Token::decode(&token.encode(), ipv6), expected);
        prop_assert_eq!(Token::decode(&token.encode(), !ipv6), Err(DropReason::Malformed));
    }

    #[test]
    fn a_decoded_token_encodes_to_the_same_bytes(header in headers(), rest: [u8; 20], noise: [u8; 2], ipv6: bool) {
        let mut bytes = [0; TOKEN_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&header.encode());
        bytes[HEADER_LEN..].copy_from_slice(&rest);
        bytes[usize::from(noise[0]) % TOKEN_LEN] ^= noise[1];
        if let Ok(token) = Token::decode(&bytes, ipv6) {
            prop_assert_eq!(token.encode(), bytes);
        }
    }

    #[test]
    fn a_token_proves_its_destination_and_no_other(
        header in headers(), key: [u8; 16], time: u32, nonce: u32,
        address in addresses(), protocol: u8, port: u16, flip in 0u8..3,
    ) {
        let key = GrantKey::new(key);
        let to = Destination { address, protocol, port };
        let token = Token::new(header, &key, time, nonce, &to);
        prop_assert!(token.proves(&key, &to));
        let other = match flip {
            0 => Destination { port: port ^ 1, ..to },
            1 => Destination { protocol: protocol ^ 1, ..to },
            _ => Destination { address: neighbour(address), ..to },
        };
        prop_assert!(!token.proves(&key, &other));
        let changed = [Token { nonce: nonce ^ 1, ..token }, Token { time: time ^ 1, ..token }];
        prop_assert!(changed.iter().all(|token| !token.proves(&key, &to)));
    }

    #[test]
    fn a_grant_key_depends_on_what_its_flags_fix_and_on_nothing_else(
        header in headers(), key: [u8; 32], address in addresses(), source in addresses(), protocol: u8, port: u16,
    ) {
        let key = VerifierKey::new(key);
        let to = Destination { address, protocol, port };
        let made = *header.key(&key, &to, source).bytes();
        let other_port = *header.key(&key, &Destination { port: port ^ 1, ..to }, source).bytes();
        prop_assert_eq!(made != other_port, header.flags.has(Flags::PORT));
        let other_source = *header.key(&key, &to, neighbour(source)).bytes();
        prop_assert_eq!(made != other_source, header.flags.has(Flags::SOURCE));
        let width = if address.is_ipv4() { 32 } else { 128 };
        let other_host = *header.key(&key, &Destination { address: neighbour(address), ..to }, source).bytes();
        prop_assert_eq!(made != other_host, header.prefix_length >= width);
    }

    #[test]
    fn a_mask_keeps_the_leading_bits_only(address in addresses(), length: u8) {
        let masked = mask(address, length);
        prop_assert_eq!(mask(masked, length), masked);
        for bit in 0..if address.is_ipv4() { 32u8 } else { 128 } {
            prop_assert_eq!(bit_of(masked, bit), bit < length && bit_of(address, bit));
        }
    }

    #[test]
    fn an_epoch_on_the_wire_is_one_of_three_or_none(now in 1u64..=u64::from(u32::MAX), low: u8) {
        let now = Epoch(now);
        match now.from_wire(low) {
            Some(epoch) => prop_assert!(epoch.on_wire() == low && epoch.0.abs_diff(now.0) <= 1),
            None => prop_assert!((0..3).all(|step| Epoch(now.0 - 1 + step).on_wire() != low)),
        }
    }

    #[test]
    fn drop_reasons_keep_their_numbers(number: u8) {
        match DropReason::from_number(number) {
            Some(reason) => prop_assert_eq!(reason as u8, number),
            None => prop_assert!(number == 0 || usize::from(number) > DropReason::ALL.len()),
        }
    }

    #[test]
    fn parsing_noise_stays_inside_the_frame(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        stays_inside(&bytes)?;
    }

    #[test]
    fn parsing_a_damaged_packet_stays_inside_the_frame(
        plan in frames(), cut: prop::sample::Index, damage in proptest::collection::vec((0usize..90, any::<u8>()), 0..4),
    ) {
        let mut frame = frame(&plan);
        for (at, value) in damage {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        stays_inside(&frame)?;
        stays_inside(&frame[..cut.index(frame.len())])?;
    }

    #[test]
    fn a_whole_packet_is_read_as_it_was_built(plan in frames()) {
        let bytes = frame(&plan);
        let packet = Packet::parse(&bytes);
        prop_assert_eq!(packet.form, Form::Whole);
        prop_assert_eq!(packet.fragment, Fragment::Whole);
        prop_assert_eq!(packet.source, Some(plan.source));
        prop_assert_eq!(packet.destination, Some(plan.destination));
        prop_assert_eq!((packet.source_port, packet.destination_port), plan.ports);
        prop_assert_eq!(bytes.get(packet.payload..packet.end), Some(&plan.payload[..]));
        prop_assert_eq!(packet.end + plan.padding, bytes.len());
    }

    #[test]
    fn what_is_appended_is_found_and_stripped_without_a_trace(plan in frames(), token: [u8; TOKEN_LEN]) {
        let original = frame(&plan);
        let packet = Packet::parse(&original);
        let mut carrying = original[..packet.end].to_vec();
        carrying.extend([0; BLOCK_LEN]);
        let length = tail::append(&mut carrying, &packet, &tail::block(&token));
        prop_assert_eq!(length, Some(packet.end + BLOCK_LEN));

        let longer = Packet::parse(&carrying);
        prop_assert_eq!(longer.form, Form::Whole);
        prop_assert_eq!(longer.end, carrying.len());
        prop_assert_eq!(tail::find(&carrying, &longer), Some((&token, Carrier::Tail)));
        check_sums(&carrying, &longer, plan.checksum)?;

        // A checksum field that is right in both readings counts as complete; this happens with one partial sum in
        // 65 536.
        prop_assume!(plan.checksum != Checksum::Partial || transport_sum(&carrying, &longer) != 0xffff);
        let length = tail::strip(&mut carrying, &longer);
        prop_assert_eq!(length, Some(packet.end));
        carrying.truncate(packet.end);
        prop_assert_eq!(&carrying[..], &original[..packet.end]);
    }

    #[test]
    fn a_stream_goes_on_behind_its_token(mut plan in frames(), token: [u8; TOKEN_LEN]) {
        plan.payload = tail::stream_block(&token).to_vec();
        let mut carrying = frame(&plan);
        let packet = Packet::parse(&carrying);
        prop_assume!(plan.checksum != Checksum::Partial || transport_sum(&carrying, &packet) != 0xffff);
        let found = tail::find(&carrying, &packet);
        prop_assert_eq!(found.is_some(), packet.opens());
        if !packet.opens() {
            return Ok(());
        }
        prop_assert_eq!(found, Some((&token, Carrier::Stream)));
        prop_assert_eq!(tail::strip(&mut carrying, &packet), Some(packet.payload));
        carrying.truncate(packet.payload);
        let stripped = Packet::parse(&carrying);
        prop_assert_eq!(stripped.form, Form::Whole);
        prop_assert_eq!(stripped.payload, stripped.end);
        prop_assert_eq!(stripped.sequence, packet.sequence.wrapping_add(BLOCK_LEN as u32));
        check_sums(&carrying, &stripped, plan.checksum)?;
    }

    #[test]
    fn an_option_that_is_added_is_found_and_stripped_without_a_trace(plan in frames(), token: [u8; TOKEN_LEN]) {
        let original = frame(&plan);
        let packet = Packet::parse(&original);
        let mut carrying = original[..packet.end].to_vec();
        carrying.extend([0; FAST_OPEN_ADDS]);
        let fits = packet.opens() && packet.payload == packet.end && packet.payload - packet.transport <= 48;
        let length = tail::append_with_option(&mut carrying, &packet, &token);
        prop_assert_eq!(length, fits.then_some(packet.end + FAST_OPEN_ADDS));
        if !fits {
            return Ok(());
        }
        let longer = Packet::parse(&carrying);
        prop_assert_eq!((longer.form, longer.end), (Form::Whole, carrying.len()));
        prop_assert_eq!(longer.payload, packet.payload + tail::FAST_OPEN_LEN);
        prop_assert_eq!(tail::find(&carrying, &longer), Some((&token, Carrier::FastOpen)));
        check_sums(&carrying, &longer, plan.checksum)?;
        prop_assume!(plan.checksum != Checksum::Partial || transport_sum(&carrying, &longer) != 0xffff);
        prop_assert_eq!(tail::strip(&mut carrying, &longer), Some(packet.end));
        carrying.truncate(packet.end);
        prop_assert_eq!(&carrying[..], &original[..packet.end]);
    }

    #[test]
    fn a_shim_that_is_put_in_is_found_and_stripped_without_a_trace(plan in frames(), content in contents()) {
        let original = frame(&plan);
        let packet = Packet::parse(&original);
        let mut carrying = original[..packet.end].to_vec();
        carrying.extend([0; SHIM_LEN]);
        let fits = plan.destination.is_ipv4() && plan.extras == 0;
        let length = shim::insert(&mut carrying, &packet, &content);
        prop_assert_eq!(length, fits.then_some(packet.end + SHIM_LEN));
        if !fits {
            return Ok(());
        }
        let longer = Packet::parse(&carrying);
        prop_assert_eq!((longer.form, longer.protocol, longer.end), (Form::Whole, shim::IPIP, carrying.len()));
        for (at, len) in [(longer.network, 20), (longer.network + 20, 60)] {
            prop_assert_eq!(checksum::fold(checksum::sum(&carrying[at..at + len], false)), 0xffff);
        }
        let Some(Ok((opened, found))) = shim::open(&carrying, &longer) else {
            return Err(TestCaseError::fail("the shim is not found"));
        };
        prop_assert!(found == content);
        prop_assert_eq!((opened.protocol, opened.source_port), (packet.protocol, packet.source_port));
        prop_assert_eq!(opened.destination_port, packet.destination_port);
        carrying.extend([0xee; 3]);
        let length = shim::strip(&mut carrying, &opened);
        prop_assert_eq!(length, Some(packet.end));
        carrying.truncate(packet.end);
        prop_assert_eq!(&carrying[..], &original[..packet.end]);
    }

    #[test]
    fn a_shim_of_other_addresses_or_lengths_is_malformed(plan in ipv4_frames(), content in contents(), at in 0usize..60) {
        let bytes = frame(&plan);
        let packet = Packet::parse(&bytes);
        prop_assert!(shim::fits(&packet));
        let mut carrying = bytes[..packet.end].to_vec();
        carrying.extend([0; SHIM_LEN]);
        shim::insert(&mut carrying, &packet, &content);
        carrying[packet.network + 20 + at] ^= 1;
        let opened = shim::open(&carrying, &Packet::parse(&carrying));
        match at {
            // Not a shim: the version, the header's length, or the first option differs.
            0 | 20 => prop_assert!(opened.is_none()),
            // Fields that routers change, and that the outer header has, too.
            1 | 4 | 5 | 8 | 10 | 11 => prop_assert!(matches!(opened, Some(Ok(_)))),
            2 | 3 | 12..=19 | 7 => prop_assert!(matches!(opened, Some(Err(DropReason::Malformed)))),
            _ => {}
        }
    }

    #[test]
    fn an_option_that_is_read_is_written_the_same(mut bytes: [u8; OPTION_LEN], content in contents(), change in (0usize..40, any::<u8>())) {
        if let Ok(content) = Content::decode(&bytes) {
            prop_assert_eq!(content.encode(), bytes);
        }
        bytes = content.encode();
        bytes[change.0] = change.1;
        if let Ok(content) = Content::decode(&bytes) {
            prop_assert_eq!(content.encode(), bytes);
        }
    }

    #[test]
    fn a_token_of_ls_proves_its_pair_and_nonce_and_no_other(pair in pairs(), nonce2: u16, secret: [u8; 32], at in 0usize..37) {
        let key = ClientKey::of(pair, &secret);
        let token = LsToken::new(pair, nonce2, &key);
        prop_assert!(token.proves(&key));
        prop_assert_eq!(Pair::of(pair.handle()), Some(pair));
        let mut bytes = token.encode();
        prop_assert_eq!(LsToken::decode(&bytes), token);
        bytes[at] ^= 1;
        let other = LsToken::decode(&bytes);
        prop_assert!(!other.proves(&ClientKey::of(other.pair, &secret)));
        let transfer = KeyTransfer { key, pair };
        let read = KeyTransfer::decode(&transfer.encode());
        prop_assert_eq!((read.pair, read.key.bytes()), (pair, transfer.key.bytes()));
    }

    #[test]
    fn a_fragment_carries_nothing(plan in frames().prop_filter("IPv4", |plan| plan.destination.is_ipv4()), token: [u8; TOKEN_LEN]) {
        let mut bytes = frame(&plan);
        let packet = Packet::parse(&bytes);
        bytes[packet.network + 6] |= 0x20;
        let packet = Packet::parse(&bytes);
        let before = bytes.clone();
        prop_assert_eq!(tail::find(&bytes, &packet), None);
        prop_assert_eq!(tail::strip(&mut bytes, &packet), None);
        prop_assert_eq!(tail::append(&mut bytes, &packet, &tail::block(&token)), None);
        prop_assert_eq!(&bytes, &before);
        bytes.extend([0; SHIM_LEN]);
        prop_assert_eq!(shim::insert(&mut bytes, &packet, &Content::Token(token)), None);
        prop_assert_eq!(&bytes[..before.len()], &before[..]);
    }
}

/// IPv4 frames without options, which can carry a shim.
fn ipv4_frames() -> impl Strategy<Value = frames::Plan> {
    (frames(), any::<[u32; 2]>()).prop_map(|(plan, [a, b])| frames::Plan {
        source: IpAddr::V4(Ipv4Addr::from(a)),
        destination: IpAddr::V4(Ipv4Addr::from(b)),
        extras: 0,
        ..plan
    })
}

fn pairs() -> impl Strategy<Value = Pair> {
    any::<([u8; 5], [u8; 2])>().prop_map(|(unique_id, nonce1)| Pair { unique_id, nonce1 })
}

fn contents() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Support),
        any::<[u8; 35]>().prop_map(Content::KeyTransfer),
        any::<([u8; 30], [u8; 7])>().prop_map(|(one, other)| {
            let mut bytes = [0; 37];
            bytes[..30].copy_from_slice(&one);
            bytes[30..].copy_from_slice(&other);
            Content::Ls(bytes)
        }),
        any::<[u8; TOKEN_LEN]>().prop_map(Content::Token),
    ]
}

/// Returns the address that differs in the last bit.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(a) => IpAddr::V4((a.to_bits() ^ 1).into()),
        IpAddr::V6(a) => IpAddr::V6((a.to_bits() ^ 1).into()),
    }
}

fn bit_of(address: IpAddr, index: u8) -> bool {
    match address {
        IpAddr::V4(a) => a.to_bits() << index >> 31 == 1,
        IpAddr::V6(a) => a.to_bits() << index >> 127 == 1,
    }
}

fn stays_inside(bytes: &[u8]) -> Result<(), TestCaseError> {
    let packet = Packet::parse(bytes);
    prop_assert!(packet.end <= bytes.len());
    if packet.form == Form::Whole {
        prop_assert!(packet.source.is_some() && packet.destination.is_some());
        prop_assert!(packet.network < packet.transport && packet.transport <= packet.end);
        if !matches!(packet.fragment, Fragment::Later(_)) {
            prop_assert!(packet.transport <= packet.payload);
        }
        if packet.fragment == Fragment::Whole {
            prop_assert!(packet.payload <= packet.end);
        }
    }
    Packet::parse_quoted(bytes, packet.payload, packet.end, packet.ipv6());
    tail::find(bytes, &packet);
    if let Some(Ok((opened, _))) = shim::open(bytes, &packet) {
        prop_assert!(opened.transport <= opened.payload && opened.payload <= opened.end && opened.end == packet.end);
    }
    Ok(())
}

/// Checks that every checksum of the frame is the one that a receiver expects.
fn check_sums(bytes: &[u8], packet: &Packet, checksum: Checksum) -> Result<(), TestCaseError> {
    if !packet.ipv6() {
        let header = usize::from(bytes[packet.network] & 15) * 4;
        prop_assert_eq!(checksum::fold(checksum::sum(&bytes[packet.network..packet.network + header], false)), 0xffff);
    }
    match checksum {
        Checksum::Whole => prop_assert_eq!(transport_sum(bytes, packet), 0xffff),
        Checksum::Partial => {
            prop_assert!(checksum::is_partial(bytes, packet) == Some(true) || transport_sum(bytes, packet) == 0xffff)
        }
        Checksum::Absent => prop_assert_eq!(&bytes[packet.transport + 6..packet.transport + 8], &[0, 0]),
    }
    Ok(())
}
