/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* First fragments of datagrams, by which the verifier decides on the later ones (wire.md §6.5). */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "drop_reason.h"
#include "flows.h"
#include "parse.h"

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
