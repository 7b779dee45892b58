/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Redirects every frame of an interface to the process that verifies it. Drops the frame if no process is attached. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Sockets by the interface's queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Number of frames for which no socket was attached. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} unserved SEC(".maps");

/* Without "frags": an AF_XDP socket takes a frame in one piece. */
SEC("xdp")
int cross(struct xdp_md *ctx)
{
	__u32 zero = 0, queue = ctx->rx_queue_index;
	__u64 *counter;

	if (bpf_map_lookup_elem(&sockets, &queue))
		return bpf_redirect_map(&sockets, queue, 0);
	counter = bpf_map_lookup_elem(&unserved, &zero);
	if (counter)
		*counter += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
