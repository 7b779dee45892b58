/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* State of a verifier of proofs: keys, withdrawn consent, remembered proofs, and the packet at hand. */
#pragma once
#define MAC_WORDS_MAX ROUTED_WORDS_MAX
#include "counters.h"
#include "clock.h"
#include "mac.h"
#include "parse.h"
#include "summing.h"

enum { GENEVE_PORT = 6081, GENEVE_LEN = 8, OPTION_LEN = 4, SEGMENT_LEN = 16, PROOF_LEN = 16, PROOFS_MAX = 5 };
enum { GENEVE_CRITICAL = 0x40, GENEVE_CONTROL = 0x80, PROOF_OPTION = 0x8153ff /* class and type in memory order */ };
enum {
	SEGMENT_PORT = 1, SEGMENT_RETURN = 2, SEGMENT_REPLY = 4, SEGMENT_SINGLE = 8, SEGMENT_UNDERLAY6 = 16, SEGMENT_IPV6 = 32,
	SEGMENT_AUTHORITY6 = 64, SEGMENT_ROUTED = 0x80,
};

const volatile struct proofs_config proofs_config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct proof_key_slot);
	__type(value, struct epoch_key);
} proof_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct withdrawal);
	__type(value, __u32); /* segments that expire at this time or earlier are void */
} withdrawn SEC(".maps");

/* One bit for each of 65 536 classes of IPv4 receivers, set if a receiver of the class may have withdrawn consent.
 * This saves most packets the look-up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_set);
} withdrawn4 SEC(".maps");

/* Number of proofs that each core remembers, a power of two. */
const volatile __u32 places_per_core SEC(".rodata.places") = 1;

/* Remembered proofs. Each core has its own slots, and each proof maps to one of them. INVARIANT: a core processes one
 * packet at a time, so that a slot is never read half written. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct remembered);
} remembered SEC(".maps");

/* Generation number that user space changes when keys or withdrawals change: proofs remembered under another number are
 * void. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} generation SEC(".maps");

enum ports { PORTS_SHOWN = 0, PORTS_HIDDEN = 1, PORTS_CUT = 2 };

/* Scratch space for the packet at hand: too large for the stack. */
struct proving {
	struct packet packet;
	struct remembered fact;
	__u64 mac[2];
	union {
		struct {
			__u8 place; /* suite, N, pointer */
			__u8 flags, protocol, epoch;
			__be32 expires;
			__be16 interface, port, sender_port, zero;
		};
		__u64 words[2];
	} segment;
	struct address sender, receiver;
	__be16 ports[2];
	__u8 inner_family, inner_protocol, shown;
	__u8 vni[3];
	__u16 reserved;
	__u32 next_proof; /* offset of the next verifier's proof, which this one unlocks; 0 if none */
	__u32 words; /* of the route's message */
	__u64 route[ROUTED_WORDS_MAX + 2]; /* the message that a proof covers on a fixed path */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct proving);
} provings SEC(".maps");

/* The segment's bytes as the proof covers them: the VNI replaces the epoch and the two zero bytes. */
static __always_inline __u64 head_word(__u64 word, __u8 vni)
{
	return (word & ~0xff000000ULL) | (__u64)vni << 24;
}

static __always_inline __u64 tail_word(__u64 word, __u8 vni, __u8 last)
{
	return (word & 0x0000ffffffffffffULL) | (__u64)vni << 48 | (__u64)last << 56;
}

/* Returns this core's slot for a proof. A MAC's bits are spread as well as those of a hash. */
static __always_inline struct remembered *place_of(__u64 proof)
{
	__u32 index = bpf_get_smp_processor_id() * places_per_core + ((__u32)proof & (places_per_core - 1));

	return bpf_map_lookup_elem(&remembered, &index);
}

/* Reports whether proofs may be checked with this key at this time (wire.md §2.3), as in verify_token. */
static __always_inline int counts_at(const struct epoch_key *key, __u32 time)
{
	__u64 length = proofs_config.epoch_length ?: 1;

	return key && key->epoch && (key->epoch + 2) * length > time && (key->epoch - 1) * length <= time;
}

/* Returns when to forget a proof that was checked with this key. */
static __always_inline __u32 remembered_until(const struct epoch_key *key, __u32 expires)
{
	__u64 ends = (key->epoch + 2) * (proofs_config.epoch_length ?: 1);

	return ends < expires ? ends : expires;
}

/* Reports whether protocol and ports are the segment's. */
static __always_inline int serves(__u8 flags, __u8 protocol, __be16 port, __be16 sender_port, __u8 inner_protocol,
				  const __be16 *ports)
{
	__be16 service, sender;

	if (!(flags & SEGMENT_PORT))
		return 1;
	service = flags & SEGMENT_RETURN ? ports[0] : ports[1];
	sender = flags & SEGMENT_RETURN ? ports[1] : ports[0];
	return protocol == inner_protocol && port == service && (!(flags & SEGMENT_SINGLE) || sender_port == sender);
}
