/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Programs that do nothing: they probe what an interface supports, and serve as a baseline for the benches. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Drops TCP SYNs over IPv4 to port 9 (discard) and nothing else: the cost of a SYN flood without a verifier. */
SEC("xdp.frags")
int drop_syns(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 54 > end || data[12] != 8 || data[13] != 0 || data[23] != 6)
		return XDP_PASS;
	return data[36] == 0 && data[37] == 9 && (data[47] & 0x12) == 0x02 ? XDP_DROP : XDP_PASS;
}

/* Sink for a bench's frames. */
SEC("xdp.frags")
int drop_all(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("tc")
int next(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
