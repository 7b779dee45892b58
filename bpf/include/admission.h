/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Verifier state other than flows: grants in use, tokens seen, fragments (wire.md §6.3 to §6.6).
 *
 * Every table is bounded. The verifier never evicts flows or grants to make room: a full table refuses new ones, so
 * that no client can push out another's. */
#pragma once
#include "accounts.h"
#include "connection.h"
#include "drop_reason.h"
#include "flows.h"
#include "ls.h"
#include "revoked.h"
#include "received.h"
#include "token.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct grant_use);
} grants SEC(".maps");

/* First fragments of admitted flows. The oldest entries are evicted, and the later fragments of their datagrams are
 * then dropped: nothing passes because an entry is missing. To block another client's fragments, an attacker needs an
 * admitted flow and must send 4096 first fragments between that client's first fragment and the later ones, which
 * follow immediately. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key); /* the ports hold the identification */
	__type(value, __u32);
} fragments SEC(".maps");

/* First fragments to unprotected services. Unauthenticated senders can send these too, hence a separate table: they
 * evict no entry of an admitted flow. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32);
} open_fragments SEC(".maps");

/* Used tokens, in buckets indexed by the tag. An entry holds the token's full timestamp and 32 other bits of the tag. A
 * slot becomes free when the clock check would reject its timestamp, and stays free, so the table needs no upkeep. A
 * bucket full of valid tokens rejects further ones. */
enum { REPLAY_ENTRIES = 8, CLOCK_SET_BACK_MAX = 600 };

struct replay_bucket {
	__u64 entries[REPLAY_ENTRIES];
};

/* BPF_F_MMAPABLE because such maps start on a page boundary: each bucket is one cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct replay_bucket);
} replays SEC(".maps");

/* Turns a fragment's flow key into the key of its datagram, in place: a second key would exceed the stack limit for
 * programs on Linux 6.1. */
static __always_inline void to_fragment_key(struct flow_key *key, const struct packet *p)
{
	key->client_port = (__be16)(p->fragment_id >> 16);
	key->server_port = (__be16)p->fragment_id;
}

enum { FRAGMENT_LIFE = 30 /* seconds, as Linux keeps fragments */ };

static __always_inline int is_recent(const __u32 *time, __u32 now)
{
	/* Signed: the clock may have been set back since. */
	return time && (__s32)(now - *time) <= FRAGMENT_LIFE;
}

/* Decides on a later fragment by the verdict on its first fragment. */
static __always_inline int follow_fragment(const struct flow_key *key, __u32 now)
{
	if (is_recent(bpf_map_lookup_elem(&fragments, key), now))
		return PASS_FLOW;
	return is_recent(bpf_map_lookup_elem(&open_fragments, key), now) ? PASS_NOT_OURS : DROP_FRAGMENT;
}

static __always_inline struct replay_bucket *bucket_of(const struct token *token)
{
	__u64 hash = ((__u64)token->block.tag[0] << 32 | token->block.tag[1]) ^ config.replay_seed;
	__u32 index = (hash * 0x9e3779b97f4a7c15ULL >> 32) & config.replay_mask;

	return bpf_map_lookup_elem(&replays, &index);
}

/* Reports whether the clock check could still accept this token. If the clock is set back a little, entries stay,
 * because their timestamps become valid again. A slot that was never used holds time 0. */
static __always_inline int is_valid_entry(__u64 entry, __u32 clock_now)
{
	return clock_now - (__u32)(entry >> 32) + CLOCK_SET_BACK_MAX <= CLOCK_SET_BACK_MAX + CLOCK_SKEW_MAX;
}

static __always_inline __u64 replay_entry(const struct token *token)
{
	return (__u64)bpf_ntohl(token->block.time) << 32 | token->block.tag[2];
}

/* Reports whether the token was used, without recording anything: replaying a token costs its grant nothing. */
static __always_inline int was_used(const struct replay_bucket *bucket, __u64 entry)
{
	const volatile __u64 *entries = bucket->entries;
	int used = 0;

#pragma unroll
	for (__u32 i = 0; i < REPLAY_ENTRIES; i++)
		used |= entries[i] == entry;
	return used;
}

enum { REPLAY_TRIES = 4 };

/* Records the token; CONTINUE if it is new. Lock-free: each slot is read once, so cores that process copies of the same
 * token compete for the same free slot, and one of them wins. If a slot becomes free for one core a second before it
 * does for another, the cores may take different slots: each then finds the other's entry, and both copies are
 * rejected. A global function, because the kernel verifies those once, on their own; if inlined, every path through it
 * would be followed to the end of admission. */
__noinline int first_use(struct replay_bucket *bucket, __u64 entry, __u32 clock_now)
{
	volatile __u64 *entries;

	if (!bucket)
		return DROP_FLOW_LIMIT;
	entries = bucket->entries;
	for (int try = 0; try < REPLAY_TRIES; try++) {
		__u32 place = REPLAY_ENTRIES;
		__u64 was = 0;

#pragma unroll
		for (__u32 i = 0; i < REPLAY_ENTRIES; i++) {
			__u64 there = entries[i];

			if (there == entry)
				return DROP_REPLAYED;
			if (place == REPLAY_ENTRIES && !is_valid_entry(there, clock_now)) {
				place = i;
				was = there;
			}
		}
		if (place >= REPLAY_ENTRIES)
			return DROP_FLOW_LIMIT;
		if (__sync_val_compare_and_swap(&bucket->entries[place], was, entry) != was)
			continue;
#pragma unroll
		for (__u32 i = 0; i < REPLAY_ENTRIES; i++) {
			if (entries[i] == entry && i != place)
				return DROP_REPLAYED;
		}
		return CONTINUE;
	}
	return DROP_FLOW_LIMIT;
}

static __always_inline int same_flow(const struct flow_key *one, const struct flow_key *other)
{
	const __u64 *a = (const __u64 *)one, *b = (const __u64 *)other;

	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4];
}

static __always_inline void release_grant(__u64 handle)
{
	struct grant_use *use = bpf_map_lookup_elem(&grants, &handle);

	if (use)
		__sync_fetch_and_sub(&use->flows, 1);
}

/* Updates the counters after a flow that a token opened has ended. */
static __always_inline void release_flow(__u64 handle, __u32 holder)
{
	release_grant(handle);
	refund_account(holder, 0, 1, 0);
}

/* Counts one more token of the grant in this window if the grant's limit allows it: otherwise one grant could fill the
 * replay table. */
static __always_inline int take_token(struct grant_use *use, __u32 time)
{
	__u32 window = time >> TOKEN_WINDOW_SHIFT;

	if (use->window != window) {
		use->window = window;
		use->tokens = 0;
	}
	if (has_token_left(__sync_fetch_and_add(&use->tokens, 1), config.flows_per_grant))
		return 1;
	__sync_fetch_and_sub(&use->tokens, 1);
	return 0;
}

/* Counts one more flow of the grant if the grant's limit allows it. */
static __always_inline int take_flow(struct grant_use *use, const struct flow_key *key, __u8 flags)
{
	if (flags & FLAG_SINGLE && !same_flow(&use->first, key))
		return 0;
	/* Signed: two cores that remove the same flow at once may subtract it twice. */
	if ((__s32)__sync_fetch_and_add(&use->flows, 1) < (__s32)config.flows_per_grant)
		return 1;
	__sync_fetch_and_sub(&use->flows, 1);
	return 0;
}

/* Removes a flow that this core has claimed as STAGE_LEAVING, and releases its grant's count. Only the claiming core
 * removes the flow: another core could otherwise remove what a third has just put in its place. */
static __always_inline int remove_taken(const struct flow_key *key, struct flow *flow, __u32 state)
{
	__u64 handle = flow->handle;
	__u32 holder = flow->holder;
	__u8 origin = flow->origin;

	if (remove_flow(key)) {
		flow->state = state;
		return -1;
	}
	if (has_grant(origin))
		release_flow(handle, holder);
	return 0;
}

/* Checks again for revocation: a grant may have been revoked, and its flows removed, between admission's first check
 * and the insertion of the flow. */
static __always_inline int keep_unless_revoked(const struct flow_key *key, __u64 handle, __u32 holder)
{
	struct flow *flow;
	__u32 state;

	if (!is_revoked(handle, holder)) {
		if (config.tells_flows == TELLS_ADMITTED)
			tell_flow(key);
		return CONTINUE;
	}
	flow = find_flow(key);
	if (!flow)
		return DROP_REVOKED;
	state = read_state(flow);
	if ((__u8)state < STAGE_CHANGING && flow->handle == handle && take_alone(flow, state, STAGE_LEAVING))
		remove_taken(key, flow, state);
	return DROP_REVOKED;
}

/* Undoes the charge for a refused token, and for its flow if there was one. */
static __always_inline void give_back(__u64 handle, __u32 holder, int flow)
{
	struct grant_use *use = bpf_map_lookup_elem(&grants, &handle);

	refund_account(holder, 1, flow, 0);
	if (!use)
		return;
	__sync_fetch_and_sub(&use->tokens, 1);
	if (flow)
		__sync_fetch_and_sub(&use->flows, 1);
}

/* Meaning of a valid token for an existing flow with the same key. */
enum relation {
	OPENS = 0, /* no flow, or one that gives way: the grant gets one more flow */
	RENEWS = 1, /* the flow is the grant's own */
	MOVES = 2, /* the flow is of another grant of the same holder: it moves to the newer grant */
	PASSES = 3, /* the flow is another holder's: it keeps its owner, and the packet passes (wire.md §6.4.5) */
};

static __always_inline enum relation relation_of(const struct flow *flow, __u32 state, const struct packet *p)
{
	__u8 stage = (__u8)state;

	/* Another core is handing the flow to a valid token right now. */
	if (stage == STAGE_CHANGING)
		return PASSES;
	if (!flow_is_live(p->flow.protocol, flow, p->time))
		return OPENS;
	if (flow->origin == BY_TOKEN) {
		if (flow->handle == p->handle)
			return RENEWS;
		if (p->holder && flow->holder == p->holder)
			return MOVES;
		if (stage == STAGE_OPENING || !is_proved(p->flow.protocol, flow, p->time))
			return OPENS;
	}
	return stage == STAGE_CLOSING || stage == STAGE_RESET ? OPENS : PASSES;
}

/* Renews a flow on a valid token of its holder. A UDP packet was already counted when its flow was looked up, unless
 * the flow lacked a recent token. */
static __always_inline void renew(struct flow *flow, const struct packet *p)
{
	if (p->flow.protocol == IP_TCP || !is_proved(p->flow.protocol, flow, p->time))
		refresh(flow, p, p->time);
	if (p->flow.protocol == IP_TCP)
		begin_connection(flow, p->sequence);
	else
		flow->proved = p->time;
}

enum { SETTLED = -2 /* the grant has no additional flow */, SETTLE_TRIES = 3 };

/* Applies a token on first use to the flow with the same key: CONTINUE if its grant has one more flow. A flow that
 * gives way is replaced atomically: no packet finds it half changed or missing. */
static __always_inline int place_flow(const struct packet *p, struct flow_key key)
{
	struct flow fresh = {}, *flow;
	enum relation relation;
	__u32 state, holder;
	__u64 before;
	__u8 origin;

	fresh.handle = p->handle;
	fresh.holder = p->holder;
	fresh.since = p->time;
	refresh(&fresh, p, p->time);
	if (key.protocol == IP_TCP)
		begin_connection(&fresh, p->sequence);
	else
		fresh.proved = p->time;
	for (int try = 0; try < SETTLE_TRIES; try++) {
		flow = find_flow(&key);
		if (!flow) {
			/* No such flow yet, or it has just ended. */
			if (p->opens_flow && !put_flow(&key, &fresh, BPF_NOEXIST))
				return CONTINUE;
			continue;
		}
		state = read_state(flow);
		relation = relation_of(flow, state, p);
		if (relation == RENEWS)
			renew(flow, p);
		if (relation == RENEWS || relation == PASSES)
			return SETTLED;
		/* The sweep is removing the flow: the sender tries again. */
		if (!p->opens_flow || (__u8)state >= STAGE_CHANGING)
			return DROP_FLOW_LIMIT;
		if (!take_alone(flow, state, STAGE_CHANGING))
			continue;
		/* The memory of a flow that has just ended may have been reused for another. */
		if (find_flow(&key) != flow) {
			flow->state = state;
			continue;
		}
		before = flow->handle;
		holder = flow->holder;
		origin = flow->origin;
		if (relation == MOVES) {
			fresh = *flow;
			fresh.state = state;
			fresh.handle = p->handle;
			renew(&fresh, p);
		}
		if (put_flow(&key, &fresh, BPF_EXIST)) {
			flow->state = state;
			return DROP_FLOW_LIMIT;
		}
		if (has_grant(origin))
			release_flow(before, holder);
		return CONTINUE;
	}
	return DROP_FLOW_LIMIT;
}

/* Called after use_token rather than from it: together their stacks would exceed what Linux 6.1 allows a program. */
__noinline int settle_flow(const struct packet *p)
{
	struct flow_key key;
	int outcome;

	if (!p)
		return DROP_FLOW_LIMIT;
	key = p->flow;
	outcome = place_flow(p, key);
	if (outcome == CONTINUE)
		return keep_unless_revoked(&key, p->handle, p->holder);
	if (p->opens_flow)
		release_flow(p->handle, p->holder);
	return outcome == SETTLED ? CONTINUE : outcome;
}

/* Counts one more token of the grant and, if the token opens a flow, one more flow, within the grant's limits. `use` is
 * the grant's entry; if there is none, its account has been charged for a new one. */
static __always_inline int charge_grant(const struct packet *p, const struct token *token, const struct flow_key *key,
					int opens_flow, struct grant_use *use)
{
	__u64 handle = p->handle;

	if (!use) {
		/* Created with this token and this flow already counted: most grants never have more. */
		struct grant_use first = {
			.flows = opens_flow, .expires = token->expires, .tokens = 1,
			.window = p->time >> TOKEN_WINDOW_SHIFT, .first = *key, .holder = p->holder,
		};

		if (!bpf_map_update_elem(&grants, &handle, &first, BPF_NOEXIST))
			return 1;
		refund_account(p->holder, 0, 0, 1);
		use = bpf_map_lookup_elem(&grants, &handle);
		if (!use)
			return 0;
	}
	if (!take_token(use, p->time))
		return 0;
	if (!opens_flow || take_flow(use, key, token->block.flags))
		return 1;
	__sync_fetch_and_sub(&use->tokens, 1);
	return 0;
}

/* Checks treatment, revocation, replay and limits (wire.md §6.4): CONTINUE if the token is valid and used for the first time. A
 * refused token is not charged. */
__noinline int use_token(struct packet *p, const struct token *token)
{
	struct replay_bucket *bucket;
	struct flow_key key; /* copied: Linux 6.1 accepts map keys on the stack, not through pointers like `p` */
	enum relation relation;
	int outcome, opens_flow;
	struct grant_use *use;
	struct flow *flow;
	__u64 handle;

	if (!p || !token)
		return DROP_REPLAYED;
	key = p->flow;
	handle = p->handle;
	bucket = bucket_of(token);
	if (!bucket)
		return DROP_FLOW_LIMIT;
	/* Here and not with the tag's check, where one value more would exceed the stack that Linux 6.1 allows a program. */
	if (!IN_TUNNEL && !p->from_pair && token->block.flags & FLAG_SEALED)
		return DROP_UNSEALED;
	if (is_revoked(handle, p->holder))
		return DROP_REVOKED;
	if (p->from_pair ? nonce_was_used(handle, p->nonce2) : was_used(bucket, replay_entry(token)))
		return DROP_REPLAYED;
	flow = find_flow(&key);
	relation = flow ? relation_of(flow, read_state(flow), p) : OPENS;
	opens_flow = relation == OPENS || relation == MOVES;
	use = bpf_map_lookup_elem(&grants, &handle);
	outcome = charge_account(p->holder, p->time, opens_flow, !use);
	if (outcome != CONTINUE)
		return outcome;
	if (!charge_grant(p, token, &key, opens_flow, use)) {
		refund_account(p->holder, 1, opens_flow, 0);
		return DROP_FLOW_LIMIT;
	}
	outcome = p->from_pair ? first_nonce(handle, p->nonce2) : first_use(bucket, replay_entry(token), p->time);
	if (outcome != CONTINUE) {
		give_back(handle, p->holder, opens_flow);
		return outcome;
	}
	p->opens_flow = opens_flow;
	return CONTINUE;
}

/* CONTINUE if the token is used for the first time and its flow is in the table. */
static __always_inline int admit_flow(struct packet *p, const struct token *token)
{
	int outcome = use_token(p, token);

	return outcome == CONTINUE ? settle_flow(p) : outcome;
}
