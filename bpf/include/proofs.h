/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Proofs in every packet, as wire.md §8.8 defines them. crates/engine/src/verifier/proofs.rs does the same; the table of cases
 * keeps the two in agreement.
 *
 * A steady flow's proof is computed once: a valid proof is remembered until it ends, unless another takes its slot,
 * consent is withdrawn or a key changes. Forgetting a proof costs only time. The most common forms have a
 * fast path (plain_proofs.h). */
#pragma once
#include "plain_proofs.h"
#include "proving.h"
#include "withdrawn.h"

/* Reads the ports of an inner packet that ends at `end`, from its transport header at `at`. */
static __always_inline int read_ports(context *ctx, struct proving *v, __u32 at, __u32 end, int later)
{
	v->ports[0] = v->ports[1] = 0;
	v->shown = later ? PORTS_HIDDEN : PORTS_SHOWN;
	if (later || (v->inner_protocol != IP_TCP && v->inner_protocol != IP_UDP))
		return CONTINUE;
	if (at + 4 > end) {
		v->shown = PORTS_CUT;
		return CONTINUE;
	}
	return load(ctx, at, v->ports, 4) ? DROP_MALFORMED : CONTINUE;
}

static __always_inline int read_inner_ipv4(context *ctx, struct proving *v, __u32 at, __u32 end)
{
	struct ipv4 ip;
	__u32 total;

	if (at + sizeof(ip) > end || load(ctx, at, &ip, sizeof(ip)))
		return DROP_MALFORMED;
	total = bpf_ntohs(ip.total_len);
	if (ip.version_ihl != 0x45 || total < sizeof(ip) || at + total > end)
		return DROP_MALFORMED;
	v->inner_family = 4;
	v->inner_protocol = ip.protocol;
	v->sender.words[0] = *(__u32 *)ip.source;
	v->receiver.words[0] = *(__u32 *)ip.destination;
	v->sender.words[1] = v->receiver.words[1] = 0;
	return read_ports(ctx, v, at + sizeof(ip), at + total, (ip.fragment & bpf_htons(0x1fff)) != 0);
}

static __always_inline int read_inner_ipv6(context *ctx, struct proving *v, __u32 at, __u32 end)
{
	struct ipv6 ip;
	__u8 next;
	int later = 0;

	if (at + sizeof(ip) > end || load(ctx, at, &ip, sizeof(ip)))
		return DROP_MALFORMED;
	at += sizeof(ip);
	if (ip.version_class >> 4 != 6 || at + bpf_ntohs(ip.payload_len) > end)
		return DROP_MALFORMED;
	end = at + bpf_ntohs(ip.payload_len);
	next = ip.next;
	if (next == IP_FRAGMENT) {
		__u8 header[4];

		if (at + 8 > end || load(ctx, at, header, 4))
			return DROP_MALFORMED;
		next = header[0];
		later = (header[2] | (header[3] & 0xf8)) != 0;
		at += 8;
	}
	if (next == IP_HOP_BY_HOP || next == IP_ROUTING || next == IP_FRAGMENT || next == IP_AUTHENTICATION ||
	    next == IP_DESTINATION_OPTIONS)
		return DROP_MALFORMED;
	v->inner_family = 6;
	v->inner_protocol = next;
	__builtin_memcpy(&v->sender, ip.source, 16);
	__builtin_memcpy(&v->receiver, ip.destination, 16);
	return read_ports(ctx, v, at, end, later);
}

/* Reads the inner packet (wire.md §8.7). */
__noinline int read_inner(context *ctx, struct proving *v, __u32 kind, __u32 at, __u32 end)
{
	__be16 type;

	if (!v)
		return DROP_MALFORMED;
	if (kind == 0x6558) {
		if (at + ETHER_LEN > end || load(ctx, at + 12, &type, 2))
			return DROP_MALFORMED;
		kind = bpf_ntohs(type);
		at += ETHER_LEN;
	}
	if (kind == 0x0800)
		return read_inner_ipv4(ctx, v, at, end);
	return kind == 0x86dd ? read_inner_ipv6(ctx, v, at, end) : DROP_MALFORMED;
}

/* Checks the routing header of a fixed path (wire.md §8.12.1), and builds the message that proofs cover on such a path
 * (§8.12.2). */
__noinline int read_route(context *ctx, const struct packet *p, struct proving *v)
{
	struct {
		__u8 next, len, kind, left, last, flags;
		__u16 tag;
	} header;
	const __u64 *sending, *destination;
	__u32 count, left, at;
	__u64 hop[2] = {};
	__u16 checksum;
	__u8 next;

	if (!p || !v || p->flow.family != 6)
		return DROP_MALFORMED;
	count = v->segment.place >> 3 & 7;
	left = count - 1 - (v->segment.place & 7);
	if (!count || count > PROOFS_MAX || left >= count)
		return DROP_MALFORMED;
	at = p->network + IPV6_LEN + 8;
	if (p->transport != at + 16 * count || load(ctx, p->network + 6, &next, 1) || next != IP_ROUTING ||
	    load(ctx, p->network + IPV6_LEN, &header, 8) || load(ctx, p->transport + 6, &checksum, 2) || checksum)
		return DROP_MALFORMED;
	if (header.next != IP_UDP || header.len != 2 * count || header.kind != 4 || header.left != left ||
	    header.last != count - 1 || header.flags || header.tag)
		return DROP_MALFORMED;
	destination = (const __u64 *)p->flow.server;
	if (load(ctx, at + 16 * left, hop, 16) || hop[0] != destination[0] || hop[1] != destination[1])
		return DROP_MALFORMED;
	sending = (const __u64 *)p->flow.client;
	v->route[0] = head_word(v->segment.words[0], v->vni[0]);
	v->route[1] = tail_word(v->segment.words[1], v->vni[1], v->vni[2]);
	v->route[2] = sending[0];
	v->route[3] = sending[1];
	for (__u32 i = 0; i < PROOFS_MAX; i++) {
		if (i >= count)
			break;
		if (load(ctx, at + 16 * i, &v->route[4 + 2 * i], 16))
			return DROP_MALFORMED;
	}
	at = 4 + 2 * count;
	asm volatile("%0 &= 15" : "+r"(at));
	if (v->inner_family == 4) {
		v->route[at] = (__u32)v->sender.words[0] | (__u64)(__u32)v->receiver.words[0] << 32;
		v->words = at + 1;
	} else {
		v->route[at] = v->sender.words[0];
		v->route[at + 1] = v->sender.words[1];
		v->route[at + 2] = v->receiver.words[0];
		v->route[at + 3] = v->receiver.words[1];
		v->words = at + 4;
	}
	return CONTINUE;
}

/* Unlocks the next verifier's proof. */
__noinline int open_next(context *ctx, const struct proving *v)
{
	__u64 proof[2] = {};

	if (!v || !v->next_proof)
		return 0;
	if (load(ctx, v->next_proof, proof, PROOF_LEN))
		return -1;
	proof[0] ^= v->mac[0];
	proof[1] ^= v->mac[1];
	return store(ctx, v->next_proof, proof, PROOF_LEN) ? -1 : 0;
}

/* Reads Geneve, its option and the inner packet; checks form, suite, families and fragments. */
__noinline int read_proof(context *ctx, const struct packet *p, struct proving *v)
{
	struct {
		__u8 words, flags;
		__be16 kind;
		__u8 vni[3], reserved;
		__u32 option;
	} head;
	__u32 at, count, pointer, authority_len, words, kind;
	__u8 flags;
	int outcome;

	if (!p || !v)
		return DROP_MALFORMED;
	at = p->payload;
	if (at + GENEVE_LEN > p->end || load(ctx, at, &head, GENEVE_LEN) || head.words >> 6)
		return DROP_MALFORMED;
	if (!head.words)
		return DROP_NO_TOKEN;
	if (at + GENEVE_LEN + 4 * head.words > p->end || load(ctx, at + GENEVE_LEN, &head.option, OPTION_LEN))
		return DROP_MALFORMED;
	if ((head.option & 0xffffff) != PROOF_OPTION)
		return DROP_NO_TOKEN;
	words = head.option >> 24;
	kind = bpf_ntohs(head.kind);
	if ((head.flags & ~GENEVE_CONTROL) != GENEVE_CRITICAL || head.reserved || words + 1 != head.words || words < SEGMENT_LEN / 4 ||
	    (kind != 0x0800 && kind != 0x86dd && kind != 0x6558))
		return DROP_MALFORMED;
	__builtin_memcpy(v->vni, head.vni, 3);
	at += GENEVE_LEN + OPTION_LEN;
	if (load(ctx, at, &v->segment, SEGMENT_LEN))
		return DROP_MALFORMED;
	flags = v->segment.flags;
	count = v->segment.place >> 3 & 7;
	pointer = v->segment.place & 7;
	authority_len = flags & SEGMENT_AUTHORITY6 ? 16 : 4;
	if (4 * words != SEGMENT_LEN + authority_len + PROOF_LEN * count || pointer >= count || count > PROOFS_MAX ||
	    (flags & SEGMENT_ROUTED && !(flags & SEGMENT_UNDERLAY6)) || (flags & SEGMENT_RETURN && flags & SEGMENT_REPLY) ||
	    v->segment.zero ||
	    (!(flags & SEGMENT_PORT) && (v->segment.protocol || v->segment.port || flags & SEGMENT_SINGLE)) ||
	    (!(flags & SEGMENT_SINGLE) && v->segment.sender_port))
		return DROP_MALFORMED;
	if (v->segment.place >> 6 != SUITE_AES_CMAC && v->segment.place >> 6 != SUITE_SIPHASH)
		return DROP_UNKNOWN_SUITE;
	at += SEGMENT_LEN;
	v->fact.authority.words[0] = v->fact.authority.words[1] = 0;
	if (authority_len == 16 ? load(ctx, at, &v->fact.authority, 16) : load(ctx, at, &v->fact.authority, 4))
		return DROP_MALFORMED;
	at += authority_len;
	if (load(ctx, at + PROOF_LEN * pointer, v->fact.proof, PROOF_LEN))
		return DROP_MALFORMED;
	v->next_proof = flags & SEGMENT_ROUTED && pointer + 1 < count ? at + PROOF_LEN * (pointer + 1) : 0;
	outcome = read_inner(ctx, v, kind, at + PROOF_LEN * count, p->end);
	if (outcome != CONTINUE)
		return outcome;
	if (flags & SEGMENT_ROUTED ? read_route(ctx, p, v) != CONTINUE : p->routed)
		return DROP_MALFORMED;
	if ((flags & SEGMENT_IPV6 ? 6 : 4) != v->inner_family || (flags & SEGMENT_UNDERLAY6 ? 6 : 4) != p->flow.family)
		return DROP_MALFORMED;
	if (flags & SEGMENT_PORT && v->shown == PORTS_CUT)
		return DROP_MALFORMED;
	return flags & SEGMENT_PORT && v->shown == PORTS_HIDDEN ? DROP_FRAGMENT : CONTINUE;
}

/* Builds the message that the proof covers (wire.md §8.6). */
static __always_inline void write_message(const struct packet *p, struct proving *v)
{
	__u64 *message = v->fact.message;
	const __u64 *sending = (const __u64 *)p->flow.client, *receiving = (const __u64 *)p->flow.server;
	__u32 words = 3;

	message[0] = head_word(v->segment.words[0], v->vni[0]);
	message[1] = tail_word(v->segment.words[1], v->vni[1], v->vni[2]);
	if (p->flow.family == 4) {
		message[2] = (__u32)sending[0] | (__u64)(__u32)receiving[0] << 32;
	} else {
		message[2] = sending[0];
		message[3] = sending[1];
		message[4] = receiving[0];
		message[5] = receiving[1];
		words = 6;
	}
	if (v->inner_family == 4) {
		message[words] = (__u32)v->sender.words[0] | (__u64)(__u32)v->receiver.words[0] << 32;
		v->fact.words = words + 1;
	} else {
		message[words] = v->sender.words[0];
		message[words + 1] = v->sender.words[1];
		message[words + 2] = v->receiver.words[0];
		message[words + 3] = v->receiver.words[1];
		v->fact.words = words + 4;
	}
}

/* Reports whether a remembered proof equals this one and still counts. */
static __always_inline int is_remembered(const struct remembered *known, const struct remembered *fact, __u32 time)
{
	if (!known || known->generation != fact->generation || known->until <= time || known->words != fact->words ||
	    known->epoch != fact->epoch || known->authority.words[0] != fact->authority.words[0] ||
	    known->authority.words[1] != fact->authority.words[1] || known->proof[0] != fact->proof[0] ||
	    known->proof[1] != fact->proof[1])
		return 0;
	for (__u32 i = 0; i < PROOF_WORDS_MAX; i++) {
		if (i >= fact->words)
			break;
		if (known->message[i] != fact->message[i])
			return 0;
	}
	return 1;
}

/* Runs the checks from the key on, and remembers a valid proof. */
__noinline int check_proof(const struct packet *p)
{
	struct proof_key_slot slot = {};
	struct remembered *known;
	struct epoch_key *key;
	const __u64 *secret;
	struct proving *v;
	__u32 zero = 0, *current, expires, time;
	__u8 suite;

	v = bpf_map_lookup_elem(&provings, &zero);
	if (!p || !v)
		return DROP_MALFORMED;
	time = p->time;
	expires = bpf_ntohl(v->segment.expires);
	suite = v->segment.place >> 6;
	slot.authority = v->fact.authority;
	slot.family = v->segment.flags & SEGMENT_AUTHORITY6 ? 6 : 4;
	slot.epoch = v->segment.epoch;
	current = bpf_map_lookup_elem(&generation, &zero);
	v->fact.generation = current ? *current : 0;
	key = bpf_map_lookup_elem(&proof_keys, &slot);
	if (!counts_at(key, time))
		return DROP_UNKNOWN_EPOCH;
	if (expires <= time)
		return DROP_EXPIRED;
	if (expires - time > proofs_config.max_lifetime)
		return DROP_LIFETIME_TOO_LONG;
	if (!serves(v->segment.flags, v->segment.protocol, v->segment.port, v->segment.sender_port, v->inner_protocol,
		    v->ports))
		return DROP_BAD_TAG;
	v->fact.epoch = v->segment.epoch;
	secret = suite == SUITE_SIPHASH ? key->siphash : key->aes;
	if (v->segment.flags & SEGMENT_ROUTED) {
		known = 0;
		mac(suite, secret, v->route, v->words, &v->fact.proof[0], v->mac);
	} else {
		write_message(p, v);
		known = place_of(v->fact.proof[0]);
		if (is_remembered(known, &v->fact, time))
			return PASS_FLOW;
		mac(suite, secret, v->fact.message, v->fact.words, &v->fact.proof[0], v->mac);
	}
	if ((v->mac[0] ^ v->fact.proof[0]) | (v->mac[1] ^ v->fact.proof[1]))
		return DROP_BAD_TAG;
	if (is_withdrawn(v))
		return DROP_REVOKED;
	if (v->segment.flags & SEGMENT_ROUTED && v->next_proof) {
		/* The lock of the next verifier's proof (wire.md §8.12.3). */
		v->route[0] |= 7;
		mac(suite, secret, v->route, v->words, 0, v->mac);
	}
	if (known) {
		v->fact.until = remembered_until(key, expires);
		*known = v->fact;
	}
	return PASS_TOKEN;
}

/* Advances the pointer and updates the checksum (wire.md §8.9). The 16-bit word that changes holds place and flags. */
__noinline int move_pointer(context *ctx, const struct packet *p)
{
	__u16 field, old, new;
	__u32 at;

	if (!p)
		return -1;
	at = p->payload + GENEVE_LEN + OPTION_LEN;
	if (load(ctx, at, &old, 2) || load(ctx, p->transport + 6, &field, 2))
		return -1;
	new = old + 1; /* the place is the first byte, and its pointer is below seven */
	if (field && (field != fold(pseudo_header(p, p->end - p->transport)) || checksum_is_whole(ctx, p))) {
		field = replace(field, old, new);
		if (!field)
			field = 0xffff;
		if (store(ctx, p->transport + 6, &field, 2))
			return -1;
	}
	return store(ctx, at, &new, 2) ? -1 : 0;
}

/* Decides on any packet. If the packet has a plain form, stores the offset of its payload in `plain` and leaves
 * `provings` alone; otherwise stores 0. */
static __always_inline int verify_and_locate(context *ctx, __u32 *plain)
{
	struct proving *v;
	struct packet *p;
	__u32 zero = 0;
	int form, outcome, ours;

	outcome = verify_plain_form(ctx, plain);
	if (outcome != CONTINUE)
		return outcome;
	v = bpf_map_lookup_elem(&provings, &zero);
	if (!v)
		return DROP_MALFORMED;
	p = &v->packet;
	__builtin_memset(p, 0, sizeof(*p));
	form = parse(ctx, p, ETHER_LEN, 0);
	if (form == FORM_NOT_IP)
		return PASS_NOT_OURS;
	if (!p->flow.family)
		return DROP_MALFORMED;
	ours = services_of(p->flow.family, p->flow.server) != 0;
	if (p->routed && !(ours && form == FORM_WHOLE && p->fragment == FRAGMENT_WHOLE && p->flow.protocol == IP_UDP &&
			   p->flow.server_port == bpf_htons(GENEVE_PORT)))
		return DROP_MALFORMED;
	if (!ours)
		return PASS_NOT_OURS;
	if (form != FORM_WHOLE)
		return DROP_MALFORMED;
	if (p->flow.protocol != IP_UDP)
		return PASS_NOT_OURS;
	if (p->fragment == FRAGMENT_LATER)
		return DROP_FRAGMENT;
	if (p->flow.server_port != bpf_htons(GENEVE_PORT))
		return PASS_NOT_OURS;
	if (p->fragment == FRAGMENT_FIRST)
		return DROP_FRAGMENT;
	if (!p->fills_ip)
		return DROP_MALFORMED;
	p->time = now();
	outcome = read_proof(ctx, p, v);
	if (outcome == CONTINUE)
		outcome = check_proof(p);
	if (outcome == PASS_TOKEN && v->segment.flags & SEGMENT_ROUTED && open_next(ctx, v))
		return DROP_MALFORMED;
	if ((outcome == PASS_TOKEN || outcome == PASS_FLOW) && move_pointer(ctx, p))
		return DROP_MALFORMED;
	return outcome;
}

static __always_inline int verify_proof(context *ctx)
{
	__u32 plain;

	return verify_and_locate(ctx, &plain);
}
