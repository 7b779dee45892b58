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

/* The fast path's state on a core. It is in one table, because each further table costs several cache lines per packet.
 * Most packets arrive in the same tick of the coarse clock as the packet before, and then need neither a helper
 * call nor a division, nor the offset. User space waits for the next tick after it has set the offset
 * (crates/datapath/src/clock.rs). */
struct core {
	__u64 settled; /* packets that the fast path let pass as part of an open flow */
	__u64 jiffies;
	__u64 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

static __noinline int begin_tick(struct core *core, __u64 jiffies)
{
	__u32 zero = 0;
	__u64 *offset = bpf_map_lookup_elem(&clock, &zero);

	if (!core || !offset)
		return 0;
	core->second = (bpf_ktime_get_coarse_ns() + *offset) / 1000000000;
	core->jiffies = jiffies;
	return 0;
}

/* Returns this core's entry, whose second is the current one; 0 if there is none. */
static __always_inline struct core *this_core(void)
{
	__u32 zero = 0;
	__u64 jiffies = bpf_jiffies64();
	struct core *core = bpf_map_lookup_elem(&cores, &zero);

	if (likely(core) && unlikely(core->jiffies != jiffies))
		begin_tick(core, jiffies);
	return core;
}

static __always_inline __u32 now(void)
{
	struct core *core = this_core();

	return likely(core) ? core->second : 0;
}
