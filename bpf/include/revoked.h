/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Revoked grants, and sessions that have ended. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "class_set.h"
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} revoked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct revoked_key);
	__type(value, __u32);
} revoked_holders SEC(".maps");

/* The classes of handles in which a handle may be revoked, and the classes of accounts in which a session has ended.
 * They save most first packets the look-up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct class_set);
} revoked_classes SEC(".maps");

static __always_inline int has_ended(__u32 holder)
{
	__u32 accounts = CLASSES_OF_ACCOUNTS;
	struct revoked_key key = { .number = holder };

	if (!in_class_set(bpf_map_lookup_elem(&revoked_classes, &accounts), account_of(holder) & 0xffff))
		return 0;
	if (bpf_map_lookup_elem(&revoked_holders, &key))
		return 1;
	key.number = account_of(holder);
	key.whole = 1;
	return !!bpf_map_lookup_elem(&revoked_holders, &key);
}

/* Reports whether a grant is revoked, or its holder's session has ended. */
static __always_inline int is_revoked(__u64 handle, __u32 holder)
{
	__u32 handles = CLASSES_OF_HANDLES;

	if (in_class_set(bpf_map_lookup_elem(&revoked_classes, &handles), handle & 0xffff) &&
	    bpf_map_lookup_elem(&revoked, &handle))
		return 1;
	return holder && has_ended(holder);
}
