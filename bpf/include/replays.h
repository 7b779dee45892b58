/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Used tokens: each token admits once (wire.md §6.4.1). */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "drop_reason.h"
#include "token.h"

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
