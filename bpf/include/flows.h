/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flows: client and service, start time, and connection state (wire.md §6.3). */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "parse.h"

/* IPv4 flows have a map of their own: hashing the short key costs half as much as hashing the long one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key4);
	__type(value, struct flow);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows6 SEC(".maps");

/* TCP connection state as far as the client's packets show it. The last three apply to flows of every protocol:
 * STAGE_OVER is a flow that has ended but keeps its entry (ENDED). STAGE_CHANGING and STAGE_LEAVING are flows that
 * one core has claimed: to hand the flow to another grant, during which its packets pass, or to remove it. */
enum stage {
	STAGE_OPEN = 0,
	STAGE_OPENING = 1,
	STAGE_CLOSING = 2,
	STAGE_RESET = 3,
	STAGE_OVER = 253,
	STAGE_CHANGING = 254,
	STAGE_LEAVING = 255,
};

static __always_inline struct flow_key4 short_key(const struct flow_key *key)
{
	/* Protocol, family and side as one word: as single bytes they would take a register each, and stack. */
	__u32 word = *(const __u32 *)&key->protocol;

	return (struct flow_key4){
		.client = *(__be32 *)key->client,
		.server = *(__be32 *)key->server,
		.client_port = key->client_port,
		.server_port = key->server_port,
		.protocol = word,
		.tunnel = word >> 16,
	};
}

static __always_inline struct flow *find_flow(const struct flow_key *key)
{
	if (key->family == 4) {
		struct flow_key4 key4 = short_key(key);

		return bpf_map_lookup_elem(&flows4, &key4);
	}
	return bpf_map_lookup_elem(&flows6, key);
}

static __always_inline long put_flow(const struct flow_key *key, const struct flow *flow, __u64 flags)
{
	if (key->family == 4) {
		struct flow_key4 key4 = short_key(key);

		return bpf_map_update_elem(&flows4, &key4, flow, flags);
	}
	return bpf_map_update_elem(&flows6, key, flow, flags);
}

static __always_inline long remove_flow(const struct flow_key *key)
{
	if (key->family == 4) {
		struct flow_key4 key4 = short_key(key);

		return bpf_map_delete_elem(&flows4, &key4);
	}
	return bpf_map_delete_elem(&flows6, key);
}

/* Reports whether the flow is counted in a grant. */
static __always_inline int has_grant(__u8 origin)
{
	return origin == BY_TOKEN || origin == ENDED;
}

static __always_inline __u32 read_state(const struct flow *flow)
{
	return *(const volatile __u32 *)&flow->state;
}

static __always_inline __u32 with_stage(__u32 state, __u8 stage)
{
	return (state & ~0xffU) | stage; /* the first byte */
}

/* Claims a flow in this state for this core alone, as STAGE_CHANGING or STAGE_LEAVING. */
static __always_inline int take_alone(struct flow *flow, __u32 state, __u8 stage)
{
	return __sync_val_compare_and_swap(&flow->state, state, with_stage(state, stage)) == state;
}

/* Moves a flow to another stage, unless a core has claimed it. */
static __always_inline void set_stage(struct flow *flow, __u8 stage)
{
	__u32 state = read_state(flow);

	if ((__u8)state != stage && (__u8)state < STAGE_OVER)
		__sync_val_compare_and_swap(&flow->state, state, with_stage(state, stage));
}

static __always_inline __u32 idle_limit(__u8 protocol, const struct flow *flow)
{
	if (protocol != IP_TCP)
		return config.udp_idle;
	return flow->stage == STAGE_OPEN ? config.tcp_idle : config.closing_idle;
}

static __always_inline int flow_is_live(__u8 protocol, const struct flow *flow, __u32 time)
{
	if (flow->stage >= STAGE_OVER)
		return flow->stage == STAGE_CHANGING;
	/* Signed: the clock may have been set back since. */
	return (__s32)(time - flow->seen) <= (__s32)idle_limit(protocol, flow);
}

/* Reports whether the client has shown a token recently enough. TCP shows one in its SYN; a flow that no client opened
 * needs none. */
static __always_inline int is_proved(__u8 protocol, const struct flow *flow, __u32 time)
{
	/* Signed: the clock may have been set back since. */
	return protocol != IP_UDP || flow->origin != BY_TOKEN || (__s32)(time - flow->proved) <= (__s32)config.udp_renewal;
}

/* Returns the live flow that a packet from outside belongs to, or 0. */
static __always_inline struct flow *live_flow(const struct flow_key *key, __u32 time)
{
	struct flow *flow = find_flow(key);

	return flow && flow_is_live(key->protocol, flow, time) && is_proved(key->protocol, flow, time) ? flow : 0;
}

static __always_inline void count_packet(struct flow *flow, __u32 time, __u32 bytes)
{
	flow->seen = time;
	flow->packets += 1;
	flow->bytes += bytes;
}

static __always_inline void refresh(struct flow *flow, const struct packet *p, __u32 time)
{
	count_packet(flow, time, p->end - p->network);
}
