/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Puts packets into shims (wire.md §4.3, §4.4), as crates/wire/src/shim.rs does.
 *
 * Include skb.h before this file. */
#pragma once
#include "checksum.h"
#include "ls_token.h"
#include "parse.h"

/* Every IPv6 path carries packets of this size (RFC 8200), and in practice every IPv4 path. */
enum { SAFE_MTU = 1280 };

/* A shim: both headers, and the option with its data. */
struct wrapping {
	struct ipv4 outer, inner;
	__u8 type, length, kind;
	union {
		__u8 data[sizeof(struct ls_token)];
		struct ls_token ls;
	};
};

static __always_inline __u8 option_length(__u8 kind)
{
	switch (kind) {
	case SHIM_SUPPORT:
		return 3;
	case SHIM_KEY_TRANSFER:
		return 3 + KEY_TRANSFER_LEN;
	case SHIM_TOKEN:
		return 3 + TAIL_LEN - 4;
	default:
		return 3 + sizeof(struct ls_token);
	}
}

static __always_inline __be16 header_sum(const void *header, __u32 length)
{
	return ~fold(bpf_csum_diff(0, 0, (__u32 *)header, length, 0));
}

/* Puts the packet, which ends at `end`, into a shim whose kind and data are already set. */
static __noinline int wrap(context *ctx, const struct packet *p, struct wrapping *wrapping, __u32 end)
{
	__be16 old, old_len, protocol;

	if (ctx->len != end && bpf_skb_change_tail(ctx, end, 0))
		return -1;
	if (load(ctx, p->network, &wrapping->outer, sizeof(wrapping->outer)))
		return -1;
	wrapping->inner = wrapping->outer;
	wrapping->inner.version_ihl = 0x4f;
	wrapping->inner.total_len = bpf_htons(end - p->network + SHIM_OPTION_LEN);
	wrapping->inner.checksum = 0;
	wrapping->type = SHIM_OPTION;
	wrapping->length = option_length(wrapping->kind);
	wrapping->inner.checksum = header_sum(&wrapping->inner, SHIM_LEN);
	old_len = wrapping->outer.total_len;
	wrapping->outer.total_len = bpf_htons(end - p->network + SHIM_LEN);
	old = wrapping->outer.ttl | wrapping->outer.protocol << 8; /* in memory order */
	protocol = wrapping->outer.ttl | IP_IPIP << 8;
	wrapping->outer.protocol = IP_IPIP;
	wrapping->outer.checksum = replace(replace(wrapping->outer.checksum, old_len, wrapping->outer.total_len), old, protocol);
	if (bpf_skb_adjust_room(ctx, SHIM_LEN, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return bpf_skb_store_bytes(ctx, p->network, wrapping, sizeof(*wrapping), 0) ? -1 : 0;
}
