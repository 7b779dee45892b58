/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The fast path for proofs in packets of the most common forms: IPv4 directly in IPv4 with suite siphash, and IPv6
 * directly in IPv6 if the proof is remembered. Both skip the work that other forms need; proofs.h decides on the rest. */
#pragma once
#include "proving.h"
#include "withdrawn.h"

/* Advances the pointer of a segment at the offset `at`, in a packet without a UDP checksum. */
static __always_inline long move_on(context *ctx, __u32 at, void *segment)
{
	return overwrite(ctx, at, segment, *(__u16 *)segment + 1); /* as in move_pointer */
}

/* Decides on a packet of the plain form, IPv4 in IPv4 without a checksum, if its proof is remembered or of suite
 * siphash. Returns CONTINUE for any other packet, whatever is wrong with it. Not inlined, so that it has its own stack
 * frame. */
__noinline int verify_plain(context *ctx)
{
	enum { HEAD = 54, PROOFS = HEAD + SEGMENT_LEN + 4 };
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *at;
	struct ipv4 *ip = data + ETHER_LEN, *inner;
	struct udp *udp = (void *)(ip + 1);
	__u32 *geneve = (void *)(udp + 1), *segment = data + HEAD, total, inner_total, count, pointer, words, zero = 0, *current;
	__u32 time, expires, now_counts;
	__u8 place, flags, *vni = (void *)(geneve + 1);
	__u64 message[4], proof[2], computed[2];
	struct proof_key_slot slot = {};
	struct remembered *fact;
	struct epoch_key *key;
	__be16 ports[2] = {};

	if (data + PROOFS > end || *(__be16 *)(data + 12) != bpf_htons(0x0800) || ip->version_ihl != 0x45)
		return CONTINUE;
	total = bpf_ntohs(ip->total_len);
	place = *(__u8 *)segment;
	flags = *((__u8 *)segment + 1);
	count = place >> 3 & 7;
	pointer = place & 7;
	words = 5 + 4 * count;
	if (ip->fragment & bpf_htons(0x3fff) || ip->protocol != IP_UDP || udp->destination != bpf_htons(GENEVE_PORT) ||
	    bpf_ntohs(udp->len) + IPV4_LEN != total || udp->checksum || !reaches(ctx, ETHER_LEN + total) ||
	    geneve[0] != (words + 1) + (GENEVE_CRITICAL << 8) + 0x00080000 || vni[3] || pointer >= count ||
	    geneve[2] != (words << 24 | PROOF_OPTION) ||
	    flags & (SEGMENT_UNDERLAY6 | SEGMENT_IPV6 | SEGMENT_AUTHORITY6 | SEGMENT_ROUTED) || segment[3] >> 16)
		return CONTINUE;
	asm volatile("%0 &= 7" : "+r"(pointer));
	at = data + PROOFS + PROOF_LEN * pointer;
	if (at + PROOF_LEN > end)
		return CONTINUE;
	proof[0] = *(__u64 *)at;
	proof[1] = *(__u64 *)(at + 8);
	asm volatile("%0 &= 7" : "+r"(count));
	inner = data + PROOFS + PROOF_LEN * count;
	if ((void *)(inner + 1) + 4 > end)
		return CONTINUE;
	inner_total = bpf_ntohs(inner->total_len);
	if (inner->version_ihl != 0x45 || inner->fragment & bpf_htons(0x1fff) || inner_total < IPV4_LEN + 4 ||
	    PROOFS + PROOF_LEN * count + inner_total > ETHER_LEN + total)
		return CONTINUE;
	if (inner->protocol == IP_TCP || inner->protocol == IP_UDP)
		__builtin_memcpy(ports, inner + 1, 4);
	/* Builds the same message as write_message. */
	message[0] = head_word(segment[0] | (__u64)segment[1] << 32, vni[0]);
	message[1] = tail_word(segment[2] | (__u64)segment[3] << 32, vni[1], vni[2]);
	message[2] = *(__u32 *)ip->source | (__u64) * (__u32 *)ip->destination << 32;
	message[3] = *(__u32 *)inner->source | (__u64) * (__u32 *)inner->destination << 32;
	fact = place_of(proof[0]);
	current = bpf_map_lookup_elem(&generation, &zero);
	time = now();
	if (!fact || !current)
		return CONTINUE;
	now_counts = *current;
	/* Equal messages imply a form that was already checked, except for the bytes that the VNI replaces: epoch and
	 * zero are compared here. */
	if (fact->proof[0] == proof[0] && fact->proof[1] == proof[1] && fact->generation == now_counts && fact->words == 4 &&
	    fact->until > time && fact->message[0] == message[0] && fact->message[1] == message[1] &&
	    fact->message[2] == message[2] && fact->message[3] == message[3] && fact->authority.words[0] == segment[4] &&
	    !fact->authority.words[1] && fact->epoch == segment[0] >> 24) {
		if (!serves(flags, segment[0] >> 16, segment[2] >> 16, segment[3], inner->protocol, ports))
			return DROP_BAD_TAG;
		return move_on(ctx, HEAD, segment) ? DROP_MALFORMED : PASS_FLOW;
	}
	if (place >> 6 != SUITE_SIPHASH || count > PROOFS_MAX || (flags & SEGMENT_RETURN && flags & SEGMENT_REPLY) ||
	    (!(flags & SEGMENT_PORT) && (segment[0] & 0xff0000 || segment[2] >> 16 || flags & SEGMENT_SINGLE)) ||
	    (!(flags & SEGMENT_SINGLE) && segment[3]))
		return CONTINUE;
	if (!services_of(4, ip->destination))
		return PASS_NOT_OURS;
	slot.authority.words[0] = segment[4];
	slot.family = 4;
	slot.epoch = segment[0] >> 24;
	key = bpf_map_lookup_elem(&proof_keys, &slot);
	if (!key || !counts_at(key, time))
		return DROP_UNKNOWN_EPOCH;
	expires = bpf_ntohl(segment[1]);
	if (expires <= time)
		return DROP_EXPIRED;
	if (expires - time > proofs_config.max_lifetime)
		return DROP_LIFETIME_TOO_LONG;
	if (!serves(flags, segment[0] >> 16, segment[2] >> 16, segment[3], inner->protocol, ports))
		return DROP_BAD_TAG;
	siphash128(key->siphash, message, 4, &proof[0], computed);
	if (computed[0] != proof[0] || computed[1] != proof[1])
		return DROP_BAD_TAG;
	if (in_class_set(bpf_map_lookup_elem(&withdrawn4, &zero), (*(__u32 *)inner->destination * 0x9e3779b1U) >> 16))
		return CONTINUE;
	fact->proof[0] = proof[0];
	fact->proof[1] = proof[1];
	fact->message[0] = message[0];
	fact->message[1] = message[1];
	fact->message[2] = message[2];
	fact->message[3] = message[3];
	fact->authority = slot.authority;
	fact->words = 4;
	fact->epoch = slot.epoch;
	fact->until = remembered_until(key, expires);
	fact->generation = now_counts;
	return move_on(ctx, HEAD, segment) ? DROP_MALFORMED : PASS_TOKEN;
}

/* Decides on a packet of the form IPv6 in IPv6 without extension headers, if its proof is remembered: PASS_FLOW, or
 * CONTINUE for any other packet, whatever is wrong with it. */
__noinline int verify_plain6(context *ctx)
{
	enum { HEAD = ETHER_LEN + IPV6_LEN + 8 + GENEVE_LEN + OPTION_LEN, AUTHORITY = HEAD + SEGMENT_LEN };
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *at;
	struct ipv6 *ip = data + ETHER_LEN, *inner;
	struct udp *udp = (void *)(ip + 1);
	__u32 *geneve = (void *)(udp + 1), *segment = data + HEAD, total, inner_len, count, pointer, words, zero = 0;
	__u32 authority_len, pseudo, *current;
	__u8 place, flags, *vni = (void *)(geneve + 1);
	const struct remembered *fact;
	const __u64 *ends, *proof;
	__be16 ports[2] = {};
	__u16 sum, old, new;

	if (data + AUTHORITY + 16 > end || ip->version_class >> 4 != 6 || ip->next != IP_UDP)
		return CONTINUE;
	total = IPV6_LEN + bpf_ntohs(ip->payload_len);
	place = *(__u8 *)segment;
	flags = *((__u8 *)segment + 1);
	count = place >> 3 & 7;
	pointer = place & 7;
	authority_len = flags & SEGMENT_AUTHORITY6 ? 16 : 4;
	words = (SEGMENT_LEN + authority_len) / 4 + 4 * count;
	if (udp->destination != bpf_htons(GENEVE_PORT) || bpf_ntohs(udp->len) + IPV6_LEN != total ||
	    !reaches(ctx, ETHER_LEN + total) || geneve[0] != (words + 1) + (GENEVE_CRITICAL << 8) + 0xdd860000 || vni[3] ||
	    pointer >= count || geneve[2] != (words << 24 | PROOF_OPTION) ||
	    (flags & (SEGMENT_UNDERLAY6 | SEGMENT_IPV6 | SEGMENT_ROUTED)) != (SEGMENT_UNDERLAY6 | SEGMENT_IPV6) ||
	    segment[3] >> 16)
		return CONTINUE;
	asm volatile("%0 &= 7" : "+r"(pointer));
	asm volatile("%0 &= 7" : "+r"(count));
	asm volatile("%0 &= 31" : "+r"(authority_len));
	at = data + AUTHORITY + authority_len + PROOF_LEN * pointer;
	if (at + PROOF_LEN > end)
		return CONTINUE;
	proof = at;
	inner = data + AUTHORITY + authority_len + PROOF_LEN * count;
	if ((void *)(inner + 1) + 4 > end)
		return CONTINUE;
	inner_len = bpf_ntohs(inner->payload_len);
	if (inner->version_class >> 4 != 6 || inner_len < 4 ||
	    AUTHORITY + authority_len + PROOF_LEN * count + IPV6_LEN + inner_len > ETHER_LEN + total)
		return CONTINUE;
	if (inner->next == IP_TCP || inner->next == IP_UDP)
		__builtin_memcpy(ports, inner + 1, 4);
	else if (inner->next != IP_ICMPV6)
		return CONTINUE;
	fact = place_of(proof[0]);
	current = bpf_map_lookup_elem(&generation, &zero);
	if (!fact || !current)
		return CONTINUE;
	/* As in verify_plain: equal messages imply a form that was already checked. */
	if (fact->proof[0] != proof[0] || fact->proof[1] != proof[1] || fact->generation != *current || fact->words != 10 ||
	    fact->until <= now() || fact->epoch != segment[0] >> 24 ||
	    fact->message[0] != head_word(segment[0] | (__u64)segment[1] << 32, vni[0]) ||
	    fact->message[1] != tail_word(segment[2] | (__u64)segment[3] << 32, vni[1], vni[2]))
		return CONTINUE;
	ends = (const __u64 *)ip->source;
	if (fact->message[2] != ends[0] || fact->message[3] != ends[1] || fact->message[4] != ends[2] ||
	    fact->message[5] != ends[3])
		return CONTINUE;
	ends = (const __u64 *)inner->source;
	if (fact->message[6] != ends[0] || fact->message[7] != ends[1] || fact->message[8] != ends[2] ||
	    fact->message[9] != ends[3])
		return CONTINUE;
	if (authority_len == 4 ? fact->authority.words[0] != segment[4] || fact->authority.words[1]
			       : fact->authority.words[0] != *(__u64 *)(data + AUTHORITY) ||
					 fact->authority.words[1] != *(__u64 *)(data + AUTHORITY + 8))
		return CONTINUE;
	if (!serves(flags, segment[0] >> 16, segment[2] >> 16, segment[3], inner->next, ports))
		return DROP_BAD_TAG;
	if (!udp->checksum)
		return move_on(ctx, HEAD, segment) ? DROP_MALFORMED : PASS_FLOW;
	old = *(__u16 *)segment;
	new = old + 1; /* as in move_pointer */
	pseudo = bpf_htons(IP_UDP) + udp->len;
#pragma unroll
	for (int i = 0; i < 16; i++)
		pseudo += ((const __u16 *)ip->source)[i];
	/* The checksum may be partial, for the network card to complete. */
	if (udp->checksum == fold(pseudo))
		return CONTINUE;
	sum = replace(udp->checksum, old, new);
	/* The pointer and the checksum change together so that the sum over the packet stays the same. */
	udp->checksum = sum ?: 0xffff;
	*(__u16 *)segment = new;
	return PASS_FLOW;
}

/* Decides on a packet of a plain form; returns the offset of its payload in `payload`, 0 for any other packet. */
static __always_inline int verify_plain_form(context *ctx, __u32 *payload)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int outcome;

	*payload = 0;
	if (data + ETHER_LEN > end)
		return CONTINUE;
	if (*(__be16 *)(data + 12) == bpf_htons(0x86dd)) {
		outcome = verify_plain6(ctx);
		if (outcome != CONTINUE)
			*payload = ETHER_LEN + IPV6_LEN + sizeof(struct udp);
		return outcome;
	}
	outcome = verify_plain(ctx);
	if (outcome != CONTINUE)
		*payload = ETHER_LEN + IPV4_LEN + sizeof(struct udp);
	return outcome;
}

/* Fills in `v`, for an IPv4 packet of the plain form, as read_proof and parse would. */
static __always_inline int note_plain(context *ctx, struct proving *v)
{
	struct packet *p = &v->packet;
	__u32 at = ETHER_LEN + IPV4_LEN + sizeof(struct udp) + GENEVE_LEN + OPTION_LEN;
	__be32 ends[2];

	__builtin_memset(p, 0, sizeof(*p));
	p->flow.family = 4;
	p->network = ETHER_LEN;
	p->payload = ETHER_LEN + IPV4_LEN + sizeof(struct udp);
	if (load(ctx, ETHER_LEN + 12, p->flow.client, 4) || load(ctx, ETHER_LEN + 16, p->flow.server, 4) ||
	    load(ctx, at, &v->segment, SEGMENT_LEN) ||
	    load(ctx, at + SEGMENT_LEN + 4 + PROOF_LEN * (v->segment.place >> 3 & 7) + 12, ends, 8))
		return -1;
	v->inner_family = 4;
	v->sender.words[0] = ends[0];
	v->receiver.words[0] = ends[1];
	v->sender.words[1] = v->receiver.words[1] = 0;
	return 0;
}
