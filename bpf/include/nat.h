/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Inside addresses: on a gateway with a pool, each identity has one while it has flows, and the inside sees no other
 * address.
 *
 * A person is a number that user space assigns once and publishes by handle, so that the kernel knows the person from
 * the first packet on. An address belongs to one person alone from the first of their flows to the last. */
#pragma once
#include "flows.h"
#include "outbound.h"
#include "rewrite.h"
#include "received.h"

/* Persons by grant handle. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct bearer);
} bearers SEC(".maps");

/* The pool: IPv4 addresses first. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pool_slot);
} pool SEC(".maps");

/* Numbers of persons. Used by user space only; kept here so that they outlive it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct person_name);
	__type(value, __u32);
} names SEC(".maps");

/* The pool address that a person had last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct lease_key);
	__type(value, __u32);
} leases SEC(".maps");

/* The way back: from a flow's client as the inside sees it to its address and port outside. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct way_back);
} ways_back SEC(".maps");

/* Address to which a first fragment was rewritten. The key holds the identification in place of the ports. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct address);
} pieces SEC(".maps");

/* Messages to user space about addresses that were assigned or became free. User space logs them, so none may be lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} news SEC(".maps");

/* Messages to user space about flows whose person is unknown. A ring of their own: one account can cause many. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} unknown SEC(".maps");

const volatile struct nat_config nat_config SEC(".rodata.nat") = {};

static __always_inline int has_pool(void)
{
	return nat_config.pool4 || nat_config.pool6;
}

/* All addresses of the pool. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct member);
	__type(value, __u32);
} members SEC(".maps");

#define SLOT_TAKEN 0x80000000 /* in `flows`: the slot is changing hands */
#define NO_SLOT 0xffffffff /* no index of the pool */
enum { BIND_TRIES = 8, YOUNG = 2 /* seconds: a way back whose flow may not be bound yet */ };

static __always_inline void report_news(__u32 kind, __u32 person, __u32 slot, __u32 time)
{
	struct nat_news *room = bpf_ringbuf_reserve(&news, sizeof(*room), 0);

	if (!room)
		return;
	room->handle = 0;
	room->kind = kind;
	room->person = person;
	room->slot = slot;
	room->time = time;
	bpf_ringbuf_submit(room, 0);
}

/* Asks user space for the person of a flow that has no inside address yet, once a second: until it has an address, the
 * flow's inside port holds the second. */
static __always_inline void ask_for_person(struct flow *flow, __u32 time)
{
	struct nat_news *room;

	if (flow->inside_port == (__be16)time)
		return;
	flow->inside_port = (__be16)time;
	room = bpf_ringbuf_reserve(&unknown, sizeof(*room), 0);
	if (!room)
		return;
	__builtin_memset(room, 0, sizeof(*room));
	room->handle = flow->handle;
	room->kind = NEWS_UNKNOWN;
	room->time = time;
	bpf_ringbuf_submit(room, 0);
}

/* Counts one more flow of the slot's person, unless the slot now belongs to another person. */
static __always_inline int hold(struct pool_slot *slot, __u32 person)
{
	__u32 flows = __sync_fetch_and_add(&slot->flows, 1);

	if (!(flows & SLOT_TAKEN) && slot->person == person)
		return 1;
	__sync_fetch_and_sub(&slot->flows, 1);
	return 0;
}

struct search {
	__u64 oldest;
	__u32 from;
	__u32 best;
};

static long look_at_slot(__u32 index, struct search *search)
{
	__u32 at = search->from + index;
	struct pool_slot *slot = bpf_map_lookup_elem(&pool, &at);

	if (slot && !slot->flows && slot->last < search->oldest) {
		search->oldest = slot->last;
		search->best = at;
	}
	return 0;
}

/* Takes a free address for a person, with one flow on it. Returns NO_SLOT if the address is in use, or if the person
 * has another one and may not have two. */
__noinline __u32 claim_slot(__u32 index, __u32 family, __u32 person, __u32 time, __u32 may_have_two)
{
	struct lease_key key = { .person = person, .family = family }, before = { .family = family };
	struct pool_slot *slot = bpf_map_lookup_elem(&pool, &index);
	__u32 *held;

	/* If another core was faster, the sender tries again. */
	if (!slot || __sync_val_compare_and_swap(&slot->flows, 0, SLOT_TAKEN) != 0)
		return NO_SLOT;
	before.person = slot->person;
	held = bpf_map_lookup_elem(&leases, &before);
	if (held && *held == index)
		bpf_map_delete_elem(&leases, &before);
	slot->person = 0;
	if (bpf_map_update_elem(&leases, &key, &index, BPF_NOEXIST) && !may_have_two) {
		__sync_fetch_and_sub(&slot->flows, SLOT_TAKEN);
		return NO_SLOT;
	}
	slot->person = person;
	slot->since = time;
	/* One flow; cores that lost the race undo their own increments. */
	__sync_fetch_and_sub(&slot->flows, SLOT_TAKEN - 1);
	report_news(NEWS_GIVEN, person, index, time);
	return index;
}

/* Takes the least recently used free address for a person, with one flow on it. */
__noinline __u32 take_slot(__u32 family, __u32 person, __u32 time)
{
	struct search search = { .oldest = ~0ULL, .best = NO_SLOT };

	search.from = family == 4 ? 0 : nat_config.pool4;
	bpf_loop(family == 4 ? nat_config.pool4 : nat_config.pool6, look_at_slot, &search, 0);
	return claim_slot(search.best, family, person, time, 0);
}

static __always_inline __u32 lease_of(__u32 family, __u32 person, __u32 time)
{
	struct lease_key key = { .person = person, .family = family };
	__u32 at, *index = bpf_map_lookup_elem(&leases, &key);
	struct pool_slot *slot;

	if (!index)
		return take_slot(family, person, time);
	at = *index;
	slot = bpf_map_lookup_elem(&pool, &at);
	return slot && hold(slot, person) ? at : NO_SLOT;
}

/* Records the way back from an inside address and port, on which a flow is already counted. Returns 0 if another
 * client's flow has that port. */
static __always_inline int note_way_back(struct pool_slot *slot, const struct flow_key *inside, const struct way_back *back)
{
	struct flow_key key = *inside; /* Linux 6.1 takes keys from the stack */
	struct way_back *known;

	if (!bpf_map_update_elem(&ways_back, &key, back, BPF_NOEXIST))
		return 1;
	known = bpf_map_lookup_elem(&ways_back, &key);
	if (!known || known->client_port != back->client_port || !same_address(&known->client, &back->client))
		return 0;
	/* The entry is from an earlier flow between the same ends, or from another core: its flow is already
	 * counted. */
	known->since = back->since;
	__sync_fetch_and_sub(&slot->flows, 1);
	return 1;
}

/* Assigns a flow its person's inside address, and a port that no other of the person's flows uses there. */
__noinline int bind_flow(const struct packet *p, struct flow *flow)
{
	struct way_back back = {};
	struct bearer *bearer;
	struct pool_slot *slot;
	struct flow_key key;
	__u64 handle;
	__u32 index;
	__u16 port;

	if (!p || !flow)
		return DROP_NO_ADDRESS;
	handle = flow->handle;
	bearer = bpf_map_lookup_elem(&bearers, &handle);
	if (!bearer) {
		ask_for_person(flow, p->time);
		return DROP_NO_ADDRESS;
	}
	index = lease_of(p->flow.family, bearer->person, p->time);
	slot = bpf_map_lookup_elem(&pool, &index);
	if (!slot)
		return DROP_NO_ADDRESS;
	slot->last = bpf_ktime_get_ns();
	key = p->flow;
	__builtin_memcpy(key.client, &slot->address, 16);
	__builtin_memcpy(&back.client, p->flow.client, 16);
	back.client_port = p->flow.client_port;
	back.slot = index;
	back.since = p->time;
	port = bpf_ntohs(p->flow.client_port);
	for (__u32 i = 0; i < BIND_TRIES; i++) {
		key.client_port = bpf_htons(port + i);
		if (!note_way_back(slot, &key, &back))
			continue;
		flow->inside_port = key.client_port;
		__sync_val_compare_and_swap(&flow->inside, 0, index + 1);
		if (config.advertises_flows) {
			key = p->flow;
			advertise_flow(&key);
		}
		return CONTINUE;
	}
	__sync_fetch_and_sub(&slot->flows, 1);
	return DROP_NO_ADDRESS;
}

/* Assigns to a flow that a peer gateway reported the inside address that the flow has at the peer. If both gateways
 * assigned an address to different persons before either learned of the other's assignment, each person keeps it on
 * the gateway that assigned it. */
SEC("syscall")
int bind_received(struct received_address *received)
{
	struct received_address own = *received;
	struct member member = { .address = own.inside, .family = own.key.family };
	struct way_back back = { .client_port = own.key.client_port, .since = own.now };
	struct pool_slot *slot;
	__u32 index, *found = bpf_map_lookup_elem(&members, &member);

	received->slot = 0;
	if (!found)
		return 0;
	index = *found;
	slot = bpf_map_lookup_elem(&pool, &index);
	if (!slot)
		return 0;
	if (!hold(slot, own.person) && claim_slot(index, own.key.family, own.person, own.now, 1) == NO_SLOT)
		return 0;
	slot->last = bpf_ktime_get_ns();
	__builtin_memcpy(&back.client, own.key.client, 16);
	back.slot = index;
	__builtin_memcpy(own.key.client, &own.inside, 16);
	own.key.client_port = own.port;
	if (note_way_back(slot, &own.key, &back))
		received->slot = index + 1;
	else
		__sync_fetch_and_sub(&slot->flows, 1);
	return 0;
}

struct bpf_map;

struct reclaim {
	__u32 now; /* Unix seconds */
	__u32 ways; /* number of ways back that were removed */
};

static long reclaim_way(struct bpf_map *map, const struct flow_key *key, struct way_back *back, struct reclaim *pass)
{
	struct flow_key outside = *key;
	struct pool_slot *slot;
	__u32 index = back->slot;
	struct flow *flow;

	__builtin_memcpy(outside.client, &back->client, 16);
	outside.client_port = back->client_port;
	flow = find_flow(&outside);
	if ((flow && flow->inside == index + 1 && flow->inside_port == key->client_port) ||
	    (__s32)(pass->now - back->since) <= YOUNG || bpf_map_delete_elem(map, key))
		return 0;
	pass->ways++;
	slot = bpf_map_lookup_elem(&pool, &index);
	if (!slot)
		return 0;
	slot->last = bpf_ktime_get_ns();
	if (__sync_fetch_and_sub(&slot->flows, 1) == 1)
		report_news(NEWS_IDLE, slot->person, index, pass->now);
	return 0;
}

/* Upkeep that user space starts after the sweep: removes the ways back of flows that have ended, which frees
 * addresses. */
SEC("syscall")
int reclaim(struct reclaim *pass)
{
	struct reclaim own = { .now = pass->now };

	bpf_for_each_map_elem(&ways_back, reclaim_way, &own, 0);
	pass->ways = own.ways;
	return 0;
}
