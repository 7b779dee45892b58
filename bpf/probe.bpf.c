/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Programs that do nothing: they find out what an interface can do, and are what the benches compare with. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp.frags")
int drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("tc")
int next(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
