/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Current time in Unix seconds. */
#pragma once
#include <bpf/bpf_helpers.h>

/* Offset from the coarse monotonic clock to Unix time, in nanoseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} clock SEC(".maps");

/* The second in which the core's latest packet arrived. Most packets arrive in the same tick of the coarse clock as
 * the packet before, and then need neither a helper call nor a division. */
struct tick {
	__u64 jiffies;
	__u64 offset;
	__u64 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tick);
} ticks SEC(".maps");

static __always_inline __u32 now(void)
{
	__u32 zero = 0;
	__u64 *offset = bpf_map_lookup_elem(&clock, &zero), jiffies = bpf_jiffies64();
	struct tick *tick = bpf_map_lookup_elem(&ticks, &zero);

	if (!offset || !tick)
		return 0;
	if (tick->jiffies != jiffies || tick->offset != *offset) {
		tick->jiffies = jiffies;
		tick->offset = *offset;
		tick->second = (bpf_ktime_get_coarse_ns() + tick->offset) / 1000000000;
	}
	return tick->second;
}
