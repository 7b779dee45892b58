/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Consent that receivers have withdrawn (wire.md §8.10). */
#pragma once
#include "proving.h"

static __always_inline int voids(const struct withdrawal *key, __u32 expires)
{
	__u32 *until = bpf_map_lookup_elem(&withdrawn, key);

	return until && expires <= *until;
}

/* Reports whether consent to the packet's segment was withdrawn (wire.md §8.10). */
__noinline int is_withdrawn(const struct proving *v)
{
	struct withdrawal key = {};
	__u32 expires;

	if (!v)
		return 1;
	expires = bpf_ntohl(v->segment.expires);
	key.vni = (__u32)v->vni[0] << 8 | (__u32)v->vni[1] << 16 | (__u32)v->vni[2] << 24;
	key.family = v->inner_family;
	key.receiver = v->receiver;
	key.sender = v->sender;
	if (voids(&key, expires))
		return 1;
	key.from_all = 1;
	key.sender.words[0] = key.sender.words[1] = 0;
	return voids(&key, expires);
}
