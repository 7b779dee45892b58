/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Revoked grants. */
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

/* The classes of handles of which one may be revoked: spares most first packets the search. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_set);
} revoked_classes SEC(".maps");

static __always_inline int is_revoked(__u64 handle)
{
	__u32 zero = 0;

	return in_class_set(bpf_map_lookup_elem(&revoked_classes, &zero), handle & 0xffff) &&
	       bpf_map_lookup_elem(&revoked, &handle);
}
