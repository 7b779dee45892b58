/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows that the inside of a gateway opens: their answers get in without a token (wire.md §6.9).
 *
 * They are in the same tables as admitted flows, so that one look-up settles a packet, but have a limit of their
 * own. */
#pragma once
#include "flows.h"

/* Number of flows that the inside has opened. The sweep recounts them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} outbound SEC(".maps");

/* Number of flows that each inside address has opened: at most a quarter of the limit, so that a host that never closes
 * its flows leaves room for its neighbours. The sweep recounts them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct member);
	__type(value, struct inside_use);
} outbound_of SEC(".maps");

enum { OUTBOUND_SHARE = 4 };

static __always_inline struct member inside_of(const struct flow_key *key)
{
	struct member inside = { .family = key->family };

	__builtin_memcpy(&inside.address, key->server, 16);
	return inside;
}

/* Counts one more flow of the inside's address if its share allows it. */
static __always_inline int take_share(const struct flow_key *key)
{
	struct member inside = inside_of(key);
	struct inside_use none = {}, *use = bpf_map_lookup_elem(&outbound_of, &inside);

	if (!use) {
		bpf_map_update_elem(&outbound_of, &inside, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&outbound_of, &inside);
		if (!use)
			return 0;
	}
	if (__sync_fetch_and_add(&use->flows, 1) < (config.max_outbound + OUTBOUND_SHARE - 1) / OUTBOUND_SHARE)
		return 1;
	__sync_fetch_and_sub(&use->flows, 1);
	return 0;
}

static __always_inline void give_share_back(const struct flow_key *key)
{
	struct member inside = inside_of(key);
	struct inside_use *use = bpf_map_lookup_elem(&outbound_of, &inside);

	if (use)
		__sync_fetch_and_sub(&use->flows, 1);
}

/* Reports whether the flow is a client's that has ended, while the inside has kept sending on it without a pause: such
 * packets open nothing (wire.md §6.9.2). The flow keeps its entry, counted in its grant, and can't be evicted. */
static __always_inline int only_ended(const struct flow *flow, __u32 time)
{
	return flow->origin == ENDED && (__s32)(time - flow->seen) <= (__s32)config.udp_idle;
}

enum { ICMP_ECHO = 8, ICMP_ECHO_REPLY = 0, ICMPV6_ECHO = 128, ICMPV6_ECHO_REPLY = 129, ECHO_ID_AT = 4 };

static __always_inline int is_icmp(const struct packet *p, __u8 type4, __u8 type6)
{
	if (p->flow.family == 4)
		return p->flow.protocol == IP_ICMP && p->icmp_type == type4;
	return p->flow.protocol == IP_ICMPV6 && p->icmp_type == type6;
}

/* Reports whether the packet answers an echo request from the inside: its identifier takes the place of the inside's
 * port. */
__noinline int answers_echo(context *ctx, const struct packet *p)
{
	struct flow_key key;
	struct flow *flow;

	if (!p || !config.max_outbound || !is_icmp(p, ICMP_ECHO_REPLY, ICMPV6_ECHO_REPLY))
		return 0;
	key = p->flow;
	if (load(ctx, p->transport + ECHO_ID_AT, &key.server_port, sizeof(key.server_port)))
		return 0;
	flow = live_flow(&key, p->time);
	if (!flow)
		return 0;
	count_packet(flow, p->time, p->end - p->network);
	return 1;
}
