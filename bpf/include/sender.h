/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whose packet it is: the agent's subject, by the packet's socket. */
#pragma once
#include "layout.h"
#include "skb.h"

enum { CGROUP_LEVELS = 8 };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct owner);
	__type(value, __u32);
} owners SEC(".maps");

/* Cookie of the socket through which user space sends queued packets again; the mark of such a packet is its subject. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} injector SEC(".maps");

/* Reports whether user space sends a packet again that waited for its grant. */
static __always_inline int is_injected(context *ctx)
{
	__u32 zero = 0;
	__u64 *cookie = ctx->sk ? bpf_map_lookup_elem(&injector, &zero) : 0;

	return cookie && *cookie && *cookie == bpf_get_socket_cookie(ctx);
}

/* Returns the subject that sent the packet, or 0. A cgroup's setting takes precedence over its user's. */
static __noinline __u32 subject_of(context *ctx, __u32 match_cgroups)
{
	struct owner owner = {};
	__u32 *subject;

	if (!ctx->sk) {
		owner.kind = OWNER_FORWARDED;
		subject = bpf_map_lookup_elem(&owners, &owner);
		return subject ? *subject : 0;
	}
	if (is_injected(ctx))
		return ctx->mark;
	if (match_cgroups) {
		owner.kind = OWNER_CGROUP;
		for (int level = CGROUP_LEVELS; level > 0; level--) {
			owner.id = bpf_skb_ancestor_cgroup_id(ctx, level);
			subject = owner.id ? bpf_map_lookup_elem(&owners, &owner) : 0;
			if (subject)
				return *subject;
		}
	}
	owner.kind = OWNER_USER;
	owner.id = bpf_get_socket_uid(ctx);
	subject = bpf_map_lookup_elem(&owners, &owner);
	return subject ? *subject : 0;
}
