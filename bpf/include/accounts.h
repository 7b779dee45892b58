/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What accounts use of the tables that all share. Each account has a budget of flows and of tokens, whatever the number of
 * its grants and sessions, so that no account can fill a table by itself (wire.md §6.4.2).
 *
 * An account has one entry. When the table is full, accounts that have none are refused: it takes as many accounts. */
#pragma once
#include "config.h"
#include "drop_reason.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct account_use);
} accounts SEC(".maps");

enum { TOKEN_WINDOW_SHIFT = 6 /* 64 s: as long as a token can be valid */, TOKENS_PER_FLOW = 8 };

/* CONTINUE if the holder's account may have one more token in this window, and `flows` (0 or 1) more flows. Nobody's flows
 * are not counted. */
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
	/* Signed: upkeep may forget an entry that another core counts in. */
	if (flows && (__s32)__sync_fetch_and_add(&use->flows, 1) >= (__s32)config.flows_per_account)
		goto flows;
	return CONTINUE;
flows:
	__sync_fetch_and_sub(&use->flows, 1);
tokens:
	__sync_fetch_and_sub(&use->tokens, 1);
	return DROP_FLOW_LIMIT;
}

/* Takes back what the account was charged for. */
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

/* One flow more, beyond its budget if need be: a gateway beside this one had room for it. */
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
