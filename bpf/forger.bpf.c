/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For the soak test only: turns each frame that the kernel passes in into another forged first packet, and sends it.
 * User space says which fields get random content. Checksums are updated, so that a forged packet that passed the
 * verifier would be answered. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum { FIELDS = 24 };

/* Two bytes of the frame, and the positions of up to two checksums that cover them; 0 for none. */
struct field {
	__u16 at;
	__u16 mask; /* bits that become random, in the frame's byte order */
	__u16 twin; /* number, from 1, of an earlier field whose content this one repeats; 0 for none */
	__u16 checksums[2];
};

struct plan {
	__u32 interface;
	__u32 fields;
	__u64 sent;
	struct field field[FIELDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

static __always_inline __u16 *word_at(struct xdp_md *ctx, __u32 at)
{
	void *place;

	asm volatile("%0 &= 0xff" : "+r"(at));
	place = (void *)(long)ctx->data + at;
	return place + 2 <= (void *)(long)ctx->data_end ? place : 0;
}

/* Updates a checksum (RFC 1624, equation 3). */
static __always_inline void correct(struct xdp_md *ctx, __u32 at, __u16 was, __u16 is)
{
	__u16 *checksum = at ? word_at(ctx, at) : 0;
	__u32 sum;

	if (!checksum)
		return;
	sum = (__u16)~*checksum + (__u16)~was + is;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*checksum = ~sum;
}

SEC("xdp")
int forge(struct xdp_md *ctx)
{
	__u32 zero = 0, random = 0;
	struct plan *plan = bpf_map_lookup_elem(&plans, &zero);

	if (!plan)
		return XDP_ABORTED;
	for (__u32 i = 0; i < FIELDS; i++) {
		struct field *field = &plan->field[i];
		__u16 *word, *twin, was, is;

		if (i >= plan->fields)
			break;
		word = word_at(ctx, field->at);
		if (!word)
			return XDP_ABORTED;
		was = *word;
		if (field->twin) {
			__u32 other = field->twin - 1;

			if (other >= FIELDS)
				return XDP_ABORTED;
			twin = word_at(ctx, plan->field[other].at);
			if (!twin)
				return XDP_ABORTED;
			is = *twin;
		} else {
			random = i & 1 && random ? random >> 16 : bpf_get_prandom_u32();
			is = (was & ~field->mask) | (random & field->mask);
		}
		*word = is;
		correct(ctx, field->checksums[0], was, is);
		correct(ctx, field->checksums[1], was, is);
	}
	plan->sent++;
	return bpf_redirect(plan->interface, 0);
}

char LICENSE[] SEC("license") = "GPL";
