/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's ladder of carriers: by which way a connection's first packet travels, and when it was answered. User space
 * decides (crates/engine/src/agent/ladder.rs); the programs follow, and tell it of first packets. */
#pragma once
#include "handed.h"
#include "layout.h"
#include "parse.h"
#include "sender.h"
#include "skb.h"

/* Bits that climb returns beside the way: user space watches the packet; it goes by the carrier `fast_open`, or by `tcp_in_udp`. */
enum { CLIMBED = 1 << 29, BY_FAST_OPEN = 1 << 28, BY_DATAGRAM = 1 << 27 };

/* An answer acknowledges the SYN and no more than the data that a SYN can have. */
enum { SYN_LENGTH_MAX = 2048 };

/* Only destinations that have more than one rung are here. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct grant_slot);
	__type(value, struct ladder);
} ladders SEC(".maps");

/* Only senders with a grant add entries, but all users share the table. An entry that is evicted costs knowledge of its path, and
 * the race of its connection: see leaves_tunnel in steer.h. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct first_packet);
} first_packets SEC(".maps");

/* Returns the entry of the connection whose SYN a packet from the receiver acknowledges. A sender who has not seen the SYN does
 * not know its number. */
static __noinline struct first_packet *first_packet_of(const struct packet *p)
{
	struct first_packet *first;
	struct flow_key key = {};

	__builtin_memcpy(key.client, p->flow.server, 16);
	__builtin_memcpy(key.server, p->flow.client, 16);
	key.client_port = p->flow.server_port;
	key.server_port = p->flow.client_port;
	key.protocol = p->flow.protocol;
	key.family = p->flow.family;
	first = bpf_map_lookup_elem(&first_packets, &key);
	return first && p->acknowledgement - (first->sequence + 1) <= SYN_LENGTH_MAX ? first : 0;
}

/* Reports whether a subject's first packet was answered outside of the tunnel, also in a datagram. */
static __noinline int is_answered_outside(const struct packet *p, __u32 subject)
{
	struct flow_key key = p->flow;
	struct first_packet *first = bpf_map_lookup_elem(&first_packets, &key);

	return first && first->subject == subject && (first->outside || first->datagram);
}

/* Records that a client goes on in the tunnel: it has had an answer there. */
static __noinline void note_inside(const struct packet *p, __u32 subject)
{
	struct flow_key key = p->flow;
	struct first_packet *first = bpf_map_lookup_elem(&first_packets, &key);

	if (first && first->subject == subject && !first->inside &&
	    p->sequence - (first->sequence + 1) <= SYN_LENGTH_MAX)
		first->inside = bpf_ktime_get_boot_ns();
}

/* Chooses the rung of a first packet, and passes a copy of the packet to user space, which sends it again by another rung if
 * no answer comes. Returns 0 if there is one rung only; else CLIMBED, with the way if that is the tunnel. If user space sends the
 * packet, returns only whether it goes by another carrier. */
static __noinline __u32 climb(context *ctx, const struct packet *p, const struct grant_slot *to)
{
	struct grant_slot slot = *to;
	struct queued_header header = { .slot = *to, .interface = ctx->ifindex, .length = ctx->len, .wish = WISH_LADDER };
	struct ladder *ladder = bpf_map_lookup_elem(&ladders, &slot);
	struct first_packet first = {};
	struct flow_key key;
	__u64 length = ctx->len;
	__u32 rung;

	/* User space sends a packet by the other rung. */
	if (is_injected(ctx) && ctx->priority & (WISH_LADDER | WISH_OUTSIDE))
		return ctx->priority & WISH_FAST_OPEN ? BY_FAST_OPEN : ctx->priority & WISH_DATAGRAM ? BY_DATAGRAM : 0;
	if (!ladder)
		return 0;
	rung = ladder->rung;
	if (rung != RUNG_PACKET && ladder->every &&
	    (__u32)__sync_fetch_and_add(&ladder->count, 1) % ladder->every == ladder->every - 1)
		rung = RUNG_PACKET;
	if (rung == RUNG_TUNNEL)
		header.wish |= LADDER_TREATMENT;
	if (rung == RUNG_FAST_OPEN)
		header.wish |= WISH_FAST_OPEN;
	if (rung == RUNG_TCP_IN_UDP)
		header.wish |= WISH_DATAGRAM;
	key = p->flow;
	first.sent = bpf_ktime_get_boot_ns();
	first.subject = slot.subject;
	first.sequence = p->sequence;
	bpf_map_update_elem(&first_packets, &key, &first, BPF_ANY);
	if (ctx->vlan_present) {
		header.vlan_proto = ctx->vlan_proto;
		header.vlan_tci = ctx->vlan_tci;
	}
	if (length > QUEUED_MAX)
		length = QUEUED_MAX;
	/* If the buffer is full, the connection is not raced. */
	bpf_perf_event_output(ctx, &queued, BPF_F_CURRENT_CPU | length << 32, &header, sizeof(header));
	if (rung == RUNG_FAST_OPEN)
		return CLIMBED | BY_FAST_OPEN;
	if (rung == RUNG_TCP_IN_UDP)
		return CLIMBED | BY_DATAGRAM;
	return CLIMBED | (rung == RUNG_TUNNEL ? STEERED | WISH_LADDER | LADDER_TREATMENT : 0);
}

/* Reports whether a packet may answer a SYN: cheaply, because most packets of a connection do not. A reset answers none: a box
 * on the way that does not let the SYN through may send one. */
static __always_inline int may_answer(context *ctx, __u32 link)
{
	void *data = (void *)(long)ctx->data + link, *end = (void *)(long)ctx->data_end;
	struct ipv4 *four = data;
	struct ipv6 *six = data;
	struct tcp *tcp;

	if (ctx->protocol == bpf_htons(0x0800)) {
		tcp = data + IPV4_LEN;
		if ((void *)(tcp + 1) > end || four->version_ihl != 0x45 || four->protocol != IP_TCP)
			return 0;
	} else if (ctx->protocol == bpf_htons(0x86dd)) {
		tcp = data + IPV6_LEN;
		if ((void *)(tcp + 1) > end || six->next != IP_TCP)
			return 0;
	} else {
		return 0;
	}
	return (tcp->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK);
}
