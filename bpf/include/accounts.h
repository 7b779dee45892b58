/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Per-account use of the shared tables. Each account has a budget of flows and of tokens, however many grants and
 * sessions it has, so that no account can fill a table by itself (wire.md §6.4.2).
 *
 * Each account takes one entry. Once the table is full, the verifier refuses accounts that have no entry yet. */
#pragma once
#include "config.h"
#include "drop_reason.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct account_use);
} accounts SEC(".maps");

enum { TOKEN_WINDOW_SHIFT = 6 /* 64 s: the longest time a token can be valid */, TOKENS_PER_FLOW = 8 };

/* Charges the holder's account one token in this window and `flows` (0 or 1) flows. Returns CONTINUE if both are within
 * the account's budget. Flows without a known holder (0) are not charged. */
__noinline int charge_account(__u32 holder, __u32 time, __u32 flows)
{
	__u32 account = account_of(holder), window = time >> TOKEN_WINDOW_SHIFT;
	struct account_use *use, none = { .window = window };

	if (!holder)
		return CONTINUE;
	use = bpf_map_lookup_elem(&accounts, &account);
	if (!use) {
		bpf_map_update_elem(&accounts, &account, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&accounts, &account);
		if (!use)
			return DROP_FLOW_LIMIT;
	}
	if (use->window != window) {
		use->window = window;
		use->tokens = 0;
	}
	if (__sync_fetch_and_add(&use->tokens, 1) / TOKENS_PER_FLOW >= config.flows_per_account)
		goto tokens;
	/* Signed: the sweep may remove an entry while another core counts in it. */
	if (flows && (__s32)__sync_fetch_and_add(&use->flows, 1) >= (__s32)config.flows_per_account)
		goto flows;
	return CONTINUE;
flows:
	__sync_fetch_and_sub(&use->flows, 1);
tokens:
	__sync_fetch_and_sub(&use->tokens, 1);
	return DROP_FLOW_LIMIT;
}

/* Undoes the account's charge. */
__noinline int refund_account(__u32 holder, __u32 tokens, __u32 flows)
{
	__u32 account = account_of(holder);
	struct account_use *use = holder ? bpf_map_lookup_elem(&accounts, &account) : 0;

	if (!use)
		return 0;
	if (tokens)
		__sync_fetch_and_sub(&use->tokens, 1);
	if (flows)
		__sync_fetch_and_sub(&use->flows, 1);
	return 0;
}

/* Counts one more flow, beyond the budget if need be: a peer gateway has already admitted it. */
__noinline int note_account(__u32 holder)
{
	__u32 account = account_of(holder);
	struct account_use first = { .flows = 1 }, *use;

	if (!holder || !bpf_map_update_elem(&accounts, &account, &first, BPF_NOEXIST))
		return 0;
	use = bpf_map_lookup_elem(&accounts, &account);
	if (use)
		__sync_fetch_and_add(&use->flows, 1);
	return 0;
}
