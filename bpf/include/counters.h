/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters of packets, by outcome. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "drop_reason.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 outcome)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &outcome);

	if (counter)
		*counter += 1;
}
