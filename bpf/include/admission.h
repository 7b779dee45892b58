/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a verifier remembers: flows, grants in use, tokens seen, fragments (wire.md §6.3 to §6.6).
 *
 * Every table is bounded. Flows and grants are never evicted to make room: a full table refuses new ones, so that nobody
 * can push somebody else out. */
#pragma once
#include "drop_reason.h"
#include "token.h"

/* IPv4 flows have a map of their own: hashing a short key costs half of what a long one does. */
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct grant_use);
} grants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key); /* the ports' place holds the identification */
	__type(value, __u32);
} fragments SEC(".maps");

/* Tokens seen, in buckets of eight found by their tag. An entry whose token the clock check refuses anyway is free, so
 * the table needs no upkeep; a bucket full of live tokens refuses more. */
#define REPLAY_ENTRIES 8

/* Where a TCP connection stands, as far as the client's packets show. */
enum stage { STAGE_OPEN = 0, STAGE_OPENING = 1, STAGE_CLOSING = 2, STAGE_RESET = 3 };

struct replay_bucket {
	struct bpf_spin_lock lock;
	struct {
		__u32 time;
		__u32 tag[3];
	} entries[REPLAY_ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct replay_bucket);
} replays SEC(".maps");

static __always_inline struct flow_key4 short_key(const struct flow_key *key)
{
	return (struct flow_key4){
		.client = *(__be32 *)key->client,
		.server = *(__be32 *)key->server,
		.client_port = key->client_port,
		.server_port = key->server_port,
		.protocol = key->protocol,
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

static __always_inline long put_flow(const struct flow_key *key, const struct flow *flow)
{
	if (key->family == 4) {
		struct flow_key4 key4 = short_key(key);

		return bpf_map_update_elem(&flows4, &key4, flow, BPF_ANY);
	}
	return bpf_map_update_elem(&flows6, key, flow, BPF_ANY);
}

static __always_inline __u32 idle_limit(__u8 protocol, const struct flow *flow)
{
	if (protocol != IP_TCP)
		return config.udp_idle;
	return flow->stage == STAGE_OPEN ? config.tcp_idle : config.closing_idle;
}

static __always_inline int flow_is_live(__u8 protocol, const struct flow *flow, __u32 time)
{
	/* Signed: the clock may have been set back since. */
	return (__s32)(time - flow->seen) <= (__s32)idle_limit(protocol, flow);
}

static __always_inline struct flow *live_flow(const struct flow_key *key, __u32 time)
{
	struct flow *flow = find_flow(key);

	return flow && flow_is_live(key->protocol, flow, time) ? flow : 0;
}

/* Where a connection stands after a segment. A FIN counts until payload follows: the client's last ACK does not open the
 * flow again, and a forged FIN does not end one that goes on. */
static __always_inline __u8 next_stage(__u8 stage, __u8 flags, int has_payload)
{
	if ((flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return STAGE_OPENING;
	if (flags & TCP_FIN || (stage == STAGE_CLOSING && !has_payload))
		return STAGE_CLOSING;
	return flags & TCP_RST ? STAGE_RESET : STAGE_OPEN;
}

static __always_inline void refresh(struct flow *flow, const struct packet *p, __u32 time)
{
	flow->seen = time;
	flow->packets += 1;
	flow->bytes += p->end - p->network;
	if (p->flow.protocol == IP_TCP)
		flow->stage = next_stage(flow->stage, p->tcp_flags, p->payload < p->end);
}

static __always_inline struct flow_key fragment_key(const struct packet *p)
{
	struct flow_key key = p->flow;

	key.client_port = (__be16)(p->fragment_id >> 16);
	key.server_port = (__be16)p->fragment_id;
	return key;
}

static __always_inline void remember_fragment(const struct packet *p)
{
	struct flow_key key = fragment_key(p);
	__u32 time = p->time;

	bpf_map_update_elem(&fragments, &key, &time, BPF_ANY);
}

enum { FRAGMENT_LIFE = 30 /* seconds, as Linux keeps fragments */ };

static __always_inline int fragment_known(const struct packet *p)
{
	struct flow_key key = fragment_key(p);
	__u32 *time = bpf_map_lookup_elem(&fragments, &key);

	/* Signed: the clock may have been set back since. */
	return time && (__s32)(p->time - *time) <= FRAGMENT_LIFE;
}

/* CONTINUE if the token is new and remembered. The eight entries are looked at under the bucket's lock, so that of two
 * copies on two cores one wins. */
__noinline int first_use(const struct token *token, __u32 clock_now)
{
	__u32 time, t0, t1, t2, index, taken = 0, done = 0;
	struct replay_bucket *bucket;
	__u64 hash;

	if (!token)
		return DROP_REPLAYED;
	time = bpf_ntohl(token->block.time);
	t0 = token->block.tag[0];
	t1 = token->block.tag[1];
	t2 = token->block.tag[2];
	hash = ((__u64)t0 << 32 | t1) ^ config.replay_seed;
	hash *= 0x9e3779b97f4a7c15ULL;
	index = (hash >> 32) & config.replay_mask;
	bucket = bpf_map_lookup_elem(&replays, &index);
	if (!bucket)
		return DROP_FLOW_LIMIT;
	bpf_spin_lock(&bucket->lock);
#pragma unroll
	for (int i = 0; i < REPLAY_ENTRIES; i++) {
		if (bucket->entries[i].time == time && bucket->entries[i].tag[0] == t0 &&
		    bucket->entries[i].tag[1] == t1 && bucket->entries[i].tag[2] == t2)
			taken = 1;
	}
#pragma unroll
	for (int i = 0; i < REPLAY_ENTRIES; i++) {
		if (!taken && !done &&
		    (!bucket->entries[i].time || (__s32)(clock_now - bucket->entries[i].time) > CLOCK_SKEW_MAX)) {
			bucket->entries[i].time = time;
			bucket->entries[i].tag[0] = t0;
			bucket->entries[i].tag[1] = t1;
			bucket->entries[i].tag[2] = t2;
			done = 1;
		}
	}
	bpf_spin_unlock(&bucket->lock);
	if (taken)
		return DROP_REPLAYED;
	return done ? CONTINUE : DROP_FLOW_LIMIT;
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

enum { TOKEN_WINDOW_SHIFT = 6 /* 64 s: as long as a token can be valid */, TOKENS_PER_FLOW = 8 };

/* Whether the grant may use one more token in this window: or one grant could fill the replay table. */
static __always_inline int has_token_left(struct grant_use *use, __u32 time)
{
	__u32 window = time >> TOKEN_WINDOW_SHIFT;

	if (use->window != window) {
		use->window = window;
		use->tokens = 0;
	}
	return __sync_fetch_and_add(&use->tokens, 1) / TOKENS_PER_FLOW < config.flows_per_grant;
}

/* CONTINUE if the token is used for the first time and the flow is in the table: replay, then flow limit. */
__noinline int admit_flow(struct packet *p, const struct token *token)
{
	struct flow fresh = {}, *flow;
	struct grant_use *use;
	struct flow_key key; /* copied: Linux 6.1 takes map keys from the stack, not through pointers like `p` */
	__u64 handle, before;
	int outcome, counted;

	if (!p || !token)
		return DROP_REPLAYED;
	key = p->flow;
	handle = p->handle;
	use = bpf_map_lookup_elem(&grants, &handle);
	if (!use) {
		struct grant_use first = { .expires = token->expires, .first = key };

		bpf_map_update_elem(&grants, &handle, &first, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&grants, &handle);
		if (!use)
			return DROP_FLOW_LIMIT;
	}
	if (!has_token_left(use, p->time))
		return DROP_FLOW_LIMIT;
	outcome = first_use(token, p->time);
	if (outcome != CONTINUE)
		return outcome;
	flow = find_flow(&key);
	if (flow && flow->handle == handle && flow_is_live(key.protocol, flow, p->time)) {
		/* UDP was counted when its flow was looked up. */
		if (p->flow.protocol == IP_TCP)
			refresh(flow, p, p->time);
		return CONTINUE;
	}
	if (token->block.flags & FLAG_SINGLE && !same_flow(&use->first, &key))
		return DROP_FLOW_LIMIT;
	/* Signed: two cores that forget the same flow at once may count it twice. */
	if ((__s32)__sync_fetch_and_add(&use->flows, 1) >= (__s32)config.flows_per_grant) {
		__sync_fetch_and_sub(&use->flows, 1);
		return DROP_FLOW_LIMIT;
	}
	counted = flow && !flow->adopted;
	before = flow ? flow->handle : 0;
	fresh.handle = handle;
	fresh.since = p->time;
	refresh(&fresh, p, p->time);
	if (put_flow(&key, &fresh)) {
		__sync_fetch_and_sub(&use->flows, 1);
		return DROP_FLOW_LIMIT;
	}
	if (counted)
		release_grant(before);
	return CONTINUE;
}
