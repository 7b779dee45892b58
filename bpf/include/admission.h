/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Uses a valid token: charges its grant and account, and puts its flow into the table (wire.md §6.4).
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
#include "replays.h"
#include "token.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct grant_use);
} grants SEC(".maps");

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
 * removes the flow. If any core could, it might remove a new flow that yet another core has just put in the same
 * place. */
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
		if (config.advertises_flows == ADVERTISES_ADMITTED)
			advertise_flow(key);
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

/* Renews a flow on a valid token of its holder. The packet of a UDP flow was already counted when its flow was
 * looked up, unless the flow lacked a recent token. */
static __always_inline void renew(struct flow *flow, const struct packet *p)
{
	if (p->flow.protocol == IP_TCP || !is_proved(p->flow.protocol, flow, p->time))
		refresh(flow, p, p->time);
	if (p->flow.protocol == IP_TCP) {
		begin_connection(flow, p->sequence);
		flow->since = p->time;
	} else {
		flow->proved = p->time;
	}
}

enum { SETTLED = -2 /* the grant has no additional flow */, SETTLE_TRIES = 3 };

/* Applies a token on first use to the flow with the same key: CONTINUE if its grant has one more flow. A flow that
 * gives way is replaced atomically: no packet finds it half changed or missing. */
static __always_inline int place_flow(const struct packet *p, struct flow_key key)
{
	struct flow new_flow = {}, *flow;
	enum relation relation;
	__u32 state, holder;
	__u64 before;
	__u8 origin;

	new_flow.handle = p->handle;
	new_flow.holder = p->holder;
	new_flow.since = p->time;
	refresh(&new_flow, p, p->time);
	if (key.protocol == IP_TCP)
		begin_connection(&new_flow, p->sequence);
	else
		new_flow.proved = p->time;
	for (int try = 0; try < SETTLE_TRIES; try++) {
		flow = find_flow(&key);
		if (!flow) {
			/* No such flow yet, or it has just ended. */
			if (p->opens_flow && !put_flow(&key, &new_flow, BPF_NOEXIST))
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
			new_flow = *flow;
			new_flow.state = state;
			new_flow.handle = p->handle;
			renew(&new_flow, p);
		}
		if (put_flow(&key, &new_flow, BPF_EXIST)) {
			flow->state = state;
			return DROP_FLOW_LIMIT;
		}
		if (has_grant(origin))
			release_flow(before, holder);
		return CONTINUE;
	}
	return DROP_FLOW_LIMIT;
}

/* Puts the flow of a token that use_token accepted into the table. A function of its own, which use_token does not
 * call, because both stacks together would exceed what Linux 6.1 allows a program. */
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
