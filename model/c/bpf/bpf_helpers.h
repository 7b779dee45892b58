/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Replaces libbpf's header, so that clang compiles the kernel programs for this machine. Every helper that touches data
 * shared between cores becomes an operation that the model checker schedules; using a helper that is missing here fails
 * to compile. */
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>
#include <stddef.h>

#define SEC(name)
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#undef __noinline
#define __noinline __attribute__((noinline))
#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)
#define barrier_var(variable) asm volatile("" : "+r"(variable))

/* A table's shape, from its definition. */
struct shape {
	const void *table;
	__u32 type, key_size, value_size;
};

#define SHAPE(map)                                                                                                     \
	((struct shape){ (map), sizeof(*(map)->type) / sizeof(int), sizeof(*(map)->key), sizeof(*(map)->value) })

void *model_lookup(struct shape shape, const void *key);
long model_update(struct shape shape, const void *key, const void *value, __u64 flags);
long model_delete(const void *table, const void *key);
long model_for_each(struct shape shape, long (*each)(void *, void *, void *, void *), void *context);

#define bpf_map_lookup_elem(map, key) model_lookup(SHAPE(map), (key))
#define bpf_map_update_elem(map, key, value, flags) model_update(SHAPE(map), (key), (value), (flags))
#define bpf_map_delete_elem(map, key) model_delete((map), (key))
#define bpf_for_each_map_elem(map, each, context, flags) model_for_each(SHAPE(map), (void *)(each), (context))

/* The model's programs have no socket layout, so they never consult the stack. */
static inline struct bpf_sock *bpf_skc_lookup_tcp(void *context, struct bpf_sock_tuple *tuple, __u32 size, __u64 space, __u64 flags)
{
	return NULL;
}

static inline void *bpf_skc_to_tcp_sock(void *socket)
{
	return NULL;
}

static inline void *bpf_skc_to_tcp_request_sock(void *socket)
{
	return NULL;
}

static inline long bpf_sk_release(void *socket)
{
	return 0;
}

/* The model's programs are in no chain, so they have no next programs. */
static inline long bpf_tail_call(void *context, void *table, __u32 slot)
{
	return -1;
}

__u64 bpf_jiffies64(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u64 bpf_ktime_get_boot_ns(void);
__u64 bpf_ktime_get_ns(void);
void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags);
void bpf_ringbuf_submit(void *room, __u64 flags);
__u64 bpf_xdp_get_buff_len(struct xdp_md *context);
long bpf_xdp_load_bytes(struct xdp_md *context, __u32 at, void *to, __u32 length);
long bpf_xdp_store_bytes(struct xdp_md *context, __u32 at, void *from, __u32 length);
long bpf_xdp_adjust_tail(struct xdp_md *context, int delta);
long bpf_xdp_adjust_head(struct xdp_md *context, int delta);
long bpf_loop(__u32 count, void *step, void *context, __u64 flags);
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed);
