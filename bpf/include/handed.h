/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Copies of packets that the agent's programs pass to user space: queued packets, and name servers' answers. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "parse.h"

/* A perf record holds less than 64 KiB. */
enum { QUEUED_MAX = 32768 };
/* Port that name servers answer from; the bit in a DNS header that marks an answer; length of the longest answer passed
 * on. */
enum { DNS_PORT = 53, DNS_ANSWER = 0x80, OVERHEARD_MAX = 4096 };
/* Answers passed on per second and core: a source that sends more is not our name server. */
enum { OVERHEARD_PER_SECOND = 64 };

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} queued SEC(".maps");

struct overhearing {
	__u32 second;
	__u32 answers;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct overhearing);
} overheard SEC(".maps");

/* Passes a copy of a name server's answer to user space: it may hold a discovery record (wire.md §7.1). */
static __noinline int overhear(context *ctx, const struct packet *p)
{
	struct queued_header header = { .interface = ctx->ifindex, .length = ctx->len };
	__u32 zero = 0, second = (__u32)(bpf_ktime_get_boot_ns() / 1000000000);
	struct overhearing *overhearing = bpf_map_lookup_elem(&overheard, &zero);
	__u64 length = ctx->len;
	__u8 flags = 0;

	if (!overhearing || length > OVERHEARD_MAX || load(ctx, p->payload + 2, &flags, 1) || !(flags & DNS_ANSWER))
		return 0;
	if (overhearing->second != second) {
		overhearing->second = second;
		overhearing->answers = 0;
	}
	if (overhearing->answers >= OVERHEARD_PER_SECOND)
		return 0;
	overhearing->answers++;
	bpf_perf_event_output(ctx, &queued, BPF_F_CURRENT_CPU | length << 32, &header, sizeof(header));
	return 0;
}
