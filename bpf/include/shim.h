/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The `shim` carrier (wire.md §4.3, §4.4): IP in IPv4, the token in an option of the inner header.
 * crates/wire/src/shim.rs has the same rules.
 *
 * Include xdp.h or skb.h before this file. */
#pragma once
#include "checksum.h"
#include "ls_token.h"
#include "parse.h"

/* Offset of a shim's token from the outer header. */
enum { SHIM_TOKEN_AT = 2 * IPV4_LEN + 3 };

struct shim {
	struct ipv4 inner;
	__u8 type, length, kind;
	union {
		__u8 data[37];
		struct ls_token ls;
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shim);
} shims SEC(".maps");

/* Returns the kind of a shim's option, or SHIM_BROKEN unless it is one of the four kinds, padded with zeros. */
static __always_inline int shim_kind(const struct shim *shim)
{
	__u32 length, rest = 0;

	switch (shim->kind) {
	case SHIM_SUPPORT:
		length = 0;
		break;
	case SHIM_KEY_TRANSFER:
		length = 35;
		break;
	case SHIM_LS_TOKEN:
		length = sizeof(shim->ls);
		break;
	case SHIM_TOKEN:
		length = 36;
		break;
	default:
		return SHIM_BROKEN;
	}
	for (__u32 i = 0; i < sizeof(shim->data); i++)
		rest |= i >= length ? shim->data[i] : 0;
	return rest || shim->length != 3 + length ? SHIM_BROKEN : shim->kind;
}

/* Returns the kind of the packet's shim, and makes `p` describe the packet without it: its own protocol and ports, with
 * a header of 80 bytes. Returns SHIM_NONE if the packet has no shim, SHIM_BROKEN if the shim is malformed. */
__noinline int open_shim(context *ctx, struct packet *p, struct shim *shim)
{
	int kind;

	if (!p || !shim || p->flow.family != 4 || p->transport != p->network + IPV4_LEN || p->transport + SHIM_LEN > p->end ||
	    load(ctx, p->transport, shim, SHIM_LEN) || shim->inner.version_ihl != 0x4f || shim->type != SHIM_OPTION)
		return SHIM_NONE;
	/* A sender behind a NAT would be mistaken for another host: the inner addresses must equal the outer ones. */
	if (*(__u32 *)shim->inner.source != *(__u32 *)p->flow.client ||
	    *(__u32 *)shim->inner.destination != *(__u32 *)p->flow.server ||
	    bpf_ntohs(shim->inner.total_len) != p->end - p->transport || shim->inner.fragment & bpf_htons(0x3fff))
		return SHIM_BROKEN;
	kind = shim_kind(shim);
	if (kind == SHIM_BROKEN)
		return SHIM_BROKEN;
	p->flow.protocol = shim->inner.protocol;
	return parse_transport(ctx, p, p->transport + SHIM_LEN) == FORM_WHOLE ? kind : SHIM_BROKEN;
}

/* Removes the shim: restores the outer header to its state before the shim was added, and cuts out the inner header. */
__noinline int strip_shim(context *ctx, const struct packet *p)
{
	struct ipv4 ip;
	__be16 total_len, old, new;

	if (!p || load(ctx, p->network, &ip, sizeof(ip)))
		return -1;
	total_len = bpf_htons(p->end - SHIM_LEN - p->network);
	ip.checksum = replace(ip.checksum, ip.total_len, total_len);
	old = ip.ttl | ip.protocol << 8; /* in memory order */
	new = ip.ttl | p->flow.protocol << 8;
	ip.checksum = replace(ip.checksum, old, new);
	ip.total_len = total_len;
	ip.protocol = p->flow.protocol;
	if (store(ctx, p->network, &ip, sizeof(ip)))
		return -1;
	/* Cut off link padding behind the packet, too. */
	if (frame_length(ctx) != p->end && cut_tail(ctx, p->end))
		return -1;
	return cut_behind(ctx, p->network + IPV4_LEN, SHIM_LEN) ? -1 : 0;
}
