/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Protected networks, each with spans of ports; the entry of the longest prefix holds all that applies to an
 * address. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "class_set.h"
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, struct services);
} protected4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, struct services);
} protected6 SEC(".maps");

/* One bit for each of 65 536 classes of IPv4 addresses, set if no address of the class is protected: saves most packets
 * the prefix look-up. A zero bit only costs time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_set);
} open4 SEC(".maps");

/* One bit for each of 65 536 classes of the first half of IPv6 addresses, set if no protected network touches the
 * class. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_set);
} open6_networks SEC(".maps");

/* One bit for each of 65 536 classes of whole IPv6 addresses, set if no single protected address, or short range of
 * them, is in the class. An IPv6 address is certainly unprotected if both bits are set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_set);
} open6_addresses SEC(".maps");

/* Loopback, link-local, multicast and broadcast addresses have classes of their own, by first byte: a host protects
 * such wide prefixes of them that no other class would be left. crates/wire/src/map/class_set.rs does the same. */
static __always_inline __u32 class_of4(__be32 address)
{
	__u32 whole = bpf_ntohl(address), first = whole >> 24;

	if (unlikely(first >= 127) && (first >= 224 || first == 127 || whole >> 16 == 0xa9fe))
		return first;
	return (address * 0x9e3779b1U) >> 16;
}

static __always_inline __u32 class_of6(__be64 half)
{
	__u32 first = bpf_be64_to_cpu(half) >> 56;

	return first >= 0xfe ? first : (half * 0x9e3779b97f4a7c15ULL) >> 48;
}

static __always_inline __u32 class_of_address6(__be64 half, __be64 rest)
{
	__u32 first = bpf_be64_to_cpu(half) >> 56;

	return first >= 0xfe ? first : ((half ^ (rest << 32 | rest >> 32)) * 0x9e3779b97f4a7c15ULL) >> 48;
}

static __always_inline int is_open4(__be32 address)
{
	__u32 zero = 0;

	return in_class_set(bpf_map_lookup_elem(&open4, &zero), class_of4(address));
}

static __always_inline int is_open6(__be64 half, __be64 rest)
{
	__u32 zero = 0;

	return in_class_set(bpf_map_lookup_elem(&open6_networks, &zero), class_of6(half)) &&
	       in_class_set(bpf_map_lookup_elem(&open6_addresses, &zero), class_of_address6(half, rest));
}

static __always_inline struct services *services_of(__u8 family, const __u8 *address)
{
	if (family == 4) {
		struct prefix4 key = { .length = 32 };
		__be32 whole;

		__builtin_memcpy(&whole, address, 4);
		if (is_open4(whole))
			return 0;
		__builtin_memcpy(key.address, address, 4);
		return bpf_map_lookup_elem(&protected4, &key);
	}
	struct prefix6 key = { .length = 128 };
	__be64 halves[2];

	__builtin_memcpy(halves, address, 16);
	if (is_open6(halves[0], halves[1]))
		return 0;
	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&protected6, &key);
}

/* The following are global functions, which the kernel checks once (docs/decisions/0155). The kernel lets their pointers
 * be null. */
__noinline int covers(const struct services *services, __u32 protocol, __u32 port)
{
	if (!services)
		return 0;
	for (__u32 i = 0; i < SERVICES_MAX; i++) {
		if (i >= services->count)
			break;
		const struct service *span = &services->spans[i];

		if (span->protocol == 0)
			return 1;
		if (span->protocol == protocol && span->first_port <= port && port <= span->last_port)
			return 1;
	}
	return 0;
}

/* Reports whether some port of this protocol is protected: for packets that don't show their port. */
__noinline int covers_some(const struct services *services, __u32 protocol)
{
	if (!services)
		return 0;
	for (__u32 i = 0; i < SERVICES_MAX; i++) {
		if (i >= services->count)
			break;
		if (services->spans[i].protocol == 0 || services->spans[i].protocol == protocol)
			return 1;
	}
	return 0;
}
