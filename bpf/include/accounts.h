/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Per-account use of the shared tables. Each account has a budget of flows, of tokens and of grants in use,
 * whatever the number of its sessions, so that no account can fill a table by itself (wire.md §6.4.2).
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

/* Reports whether a count of tokens leaves room for another token of a grant or account that may have this many flows.
 *
 * All counts are compared signed, because two things can take a count below 0 for a while: a token may be refunded
 * after another core has begun the next window, and the sweep may remove an entry while another core counts in it.
 * The product fits into 32 bits: the settings allow 2^26 flows. */
static __always_inline int has_token_left(__u32 tokens, __u32 flows_max)
{
	return (__s32)tokens < (__s32)(flows_max * TOKENS_PER_FLOW);
}

/* Charges the holder's account one token in this window, `flows` (0 or 1) flows and `grants` (0 or 1) grants in use.
 * Returns CONTINUE if all are within the account's budget. Flows without a known holder (0) are not charged. */
__noinline int charge_account(__u32 holder, __u32 time, __u32 flows, __u32 grants)
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
	if (!has_token_left(__sync_fetch_and_add(&use->tokens, 1), config.flows_per_account))
		goto tokens;
	if (flows && (__s32)__sync_fetch_and_add(&use->flows, 1) >= (__s32)config.flows_per_account)
		goto flows;
	if (grants && (__s32)__sync_fetch_and_add(&use->grants, 1) >= (__s32)config.grants_per_account)
		goto grants;
	return CONTINUE;
grants:
	__sync_fetch_and_sub(&use->grants, 1);
	if (!flows)
		goto tokens;
flows:
	__sync_fetch_and_sub(&use->flows, 1);
tokens:
	__sync_fetch_and_sub(&use->tokens, 1);
	return DROP_FLOW_LIMIT;
}

/* Undoes the account's charge. */
__noinline int refund_account(__u32 holder, __u32 tokens, __u32 flows, __u32 grants)
{
	__u32 account = account_of(holder);
	struct account_use *use = holder ? bpf_map_lookup_elem(&accounts, &account) : 0;

	if (!use)
		return 0;
	if (tokens)
		__sync_fetch_and_sub(&use->tokens, 1);
	if (flows)
		__sync_fetch_and_sub(&use->flows, 1);
	if (grants)
		__sync_fetch_and_sub(&use->grants, 1);
	return 0;
}

/* Counts one more flow, and `grants` (0 or 1) more grants in use, beyond the budget if need be: a peer gateway has
 * already admitted the flow. */
__noinline int note_account(__u32 holder, __u32 grants)
{
	__u32 account = account_of(holder);
	struct account_use first = { .flows = 1, .grants = grants }, *use;

	if (!holder || !bpf_map_update_elem(&accounts, &account, &first, BPF_NOEXIST))
		return 0;
	use = bpf_map_lookup_elem(&accounts, &account);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->flows, 1);
	if (grants)
		__sync_fetch_and_add(&use->grants, 1);
	return 0;
}
