/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Runs a kernel program on this machine, operation by operation.
 *
 * clang's thread sanitizer inserts a call before each load and store, and in place of each atomic operation. The
 * functions here pass on accesses to a table's elements as operations; all other memory is the program's own and is
 * accessed directly. */
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "operations.h"

static __thread void *current;
static __thread operate operate_on;
static __thread jmp_buf stop;
static __thread char *frame_begin, *frame_end;
/* Address range of the tables' elements in this thread. */
static __thread __u64 elements, elements_length;

static void perform(struct operation *operation)
{
	if (operate_on(current, operation))
		longjmp(stop, 1);
}

static int is_shared(const volatile void *address)
{
	return (__u64)address - elements < elements_length;
}

/* Sets the program's settings, which are on read-only pages. */
int model_configure(void *place, const void *settings, __u64 size)
{
	__u64 page = sysconf(_SC_PAGESIZE), from = (__u64)place & ~(page - 1);

	if (mprotect((void *)from, (__u64)place + size - from, PROT_READ | PROT_WRITE))
		return -1;
	memcpy(place, settings, size);
	return 0;
}

/* Sets where the elements of this thread are. The caller has to call this before the thread's first run. */
void model_begin(void *begin, __u64 length)
{
	elements = (__u64)begin;
	elements_length = length;
}

enum { STOPPED = -1 };

int admit(struct xdp_md *context);

/* Runs admission on a frame, which is below 2^32, because a context's fields have 32 bits. Returns the program's return
 * code, or STOPPED. */
int model_admit(void *run, operate operate, char *frame, __u32 length, __u32 room)
{
	struct xdp_md context = { .data = (__u32)(__u64)frame, .data_end = (__u32)(__u64)frame + length };

	current = run;
	operate_on = operate;
	frame_begin = frame;
	frame_end = frame + room;
	return setjmp(stop) ? STOPPED : admit(&context);
}

/* Defined in sweep.h. */
struct sweep;
int sweep(struct sweep *pass);

int model_sweep(void *run, operate operate, struct sweep *pass)
{
	current = run;
	operate_on = operate;
	return setjmp(stop) ? STOPPED : sweep(pass);
}

void *model_lookup(struct shape shape, const void *key)
{
	struct operation operation = { .kind = LOOKUP, .shape = shape, .key = key };

	perform(&operation);
	return operation.address;
}

long model_update(struct shape shape, const void *key, const void *value, __u64 flags)
{
	struct operation operation = { .kind = UPDATE, .shape = shape, .key = key, .value = value, .argument = flags };

	perform(&operation);
	return (long)operation.result;
}

long model_delete(const void *table, const void *key)
{
	struct operation operation = { .kind = DELETE, .shape.table = table, .key = key };

	perform(&operation);
	return (long)operation.result;
}

long model_for_each(struct shape shape, long (*each)(void *, void *, void *, void *), void *context)
{
	struct operation operation = { .kind = NEXT, .shape = shape };
	char key[64];
	long count = 0;

	for (;;) {
		operation.value = key;
		perform(&operation);
		if (!operation.address)
			return count;
		count++;
		if (each((void *)shape.table, key, operation.address, context))
			return count;
		operation.argument = operation.result;
	}
}

static __thread __u64 nanoseconds;

/* The program reads both clocks together, so one operation serves both. */
__u64 bpf_jiffies64(void)
{
	struct operation operation = { .kind = CLOCK };

	perform(&operation);
	nanoseconds = operation.result * 1000000000;
	return operation.result;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return nanoseconds;
}

__u64 bpf_ktime_get_boot_ns(void)
{
	return nanoseconds;
}

__u64 bpf_ktime_get_ns(void)
{
	return nanoseconds;
}

/* No ring buffer is open in the model, so every reservation fails. */
void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags)
{
	return NULL;
}

void bpf_ringbuf_submit(void *room, __u64 flags)
{
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *context)
{
	return context->data_end - context->data;
}

long bpf_xdp_load_bytes(struct xdp_md *context, __u32 at, void *to, __u32 length)
{
	if ((__u64)at + length > bpf_xdp_get_buff_len(context))
		return -1;
	memcpy(to, (char *)(__u64)context->data + at, length);
	return 0;
}

long bpf_xdp_store_bytes(struct xdp_md *context, __u32 at, void *from, __u32 length)
{
	if ((__u64)at + length > bpf_xdp_get_buff_len(context))
		return -1;
	memcpy((char *)(__u64)context->data + at, from, length);
	return 0;
}

long bpf_xdp_adjust_tail(struct xdp_md *context, int delta)
{
	if (context->data_end + delta < context->data || (char *)(__u64)context->data_end + delta > frame_end)
		return -1;
	context->data_end += delta;
	return 0;
}

long bpf_xdp_adjust_head(struct xdp_md *context, int delta)
{
	if ((char *)(__u64)context->data + delta < frame_begin || context->data + delta > context->data_end)
		return -1;
	context->data += delta;
	return 0;
}

long bpf_loop(__u32 count, void *step, void *context, __u64 flags)
{
	long (*each)(__u32, void *) = step;
	__u32 index;

	for (index = 0; index < count; index++) {
		if (each(index, context))
			return index + 1;
	}
	return count;
}

__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed)
{
	__u64 sum = seed;
	__u32 i;

	for (i = 0; i < from_size / 4; i++)
		sum += ~from[i];
	for (i = 0; i < to_size / 4; i++)
		sum += to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/* The functions that the sanitizer's instrumentation calls. */

void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller)
{
}

void __tsan_func_exit(void)
{
}

static void at_memory(enum kind kind, void *address, __u32 size)
{
	struct operation operation = { .kind = kind, .size = size, .address = address };

	if (is_shared(address))
		perform(&operation);
}

#define PLAIN(bytes)                                                                                                   \
	void __tsan_read##bytes(void *address) { at_memory(READ, address, bytes); }                                   \
	void __tsan_write##bytes(void *address) { at_memory(WRITE, address, bytes); }                                 \
	void __tsan_unaligned_read##bytes(void *address) { at_memory(READ, address, bytes); }                         \
	void __tsan_unaligned_write##bytes(void *address) { at_memory(WRITE, address, bytes); }

PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

static __u64 change(enum kind kind, volatile void *address, __u32 size, __u64 argument, __u64 expected)
{
	struct operation operation = { .kind = kind, .size = size, .address = (void *)address, .argument = argument,
				       .expected = expected };

	perform(&operation);
	return operation.result;
}

#define ATOMIC(bits, type)                                                                                             \
	type __tsan_atomic##bits##_load(const volatile type *at, int order)                                           \
	{                                                                                                              \
		at_memory(READ, (void *)at, sizeof(type));                                                             \
		return *at;                                                                                            \
	}                                                                                                              \
	type __tsan_atomic##bits##_fetch_add(volatile type *at, type by, int order)                                   \
	{                                                                                                              \
		return is_shared(at) ? change(ADD, at, sizeof(type), by, 0) : __sync_fetch_and_add(at, by);            \
	}                                                                                                              \
	type __tsan_atomic##bits##_fetch_sub(volatile type *at, type by, int order)                                   \
	{                                                                                                              \
		return is_shared(at) ? change(ADD, at, sizeof(type), -by, 0) : __sync_fetch_and_sub(at, by);           \
	}                                                                                                              \
	type __tsan_atomic##bits##_fetch_and(volatile type *at, type with, int order)                                 \
	{                                                                                                              \
		return is_shared(at) ? change(AND, at, sizeof(type), with, 0) : __sync_fetch_and_and(at, with);        \
	}                                                                                                              \
	type __tsan_atomic##bits##_fetch_or(volatile type *at, type with, int order)                                  \
	{                                                                                                              \
		return is_shared(at) ? change(OR, at, sizeof(type), with, 0) : __sync_fetch_and_or(at, with);          \
	}                                                                                                              \
	type __tsan_atomic##bits##_exchange(volatile type *at, type with, int order)                                  \
	{                                                                                                              \
		return is_shared(at) ? change(EXCHANGE, at, sizeof(type), with, 0) : __sync_lock_test_and_set(at, with);\
	}                                                                                                              \
	type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type was, type with, int order, int other) \
	{                                                                                                              \
		return is_shared(at) ? change(SWAP_IF, at, sizeof(type), with, was) :                                  \
				       __sync_val_compare_and_swap(at, was, with);                                     \
	}

ATOMIC(8, __u8)
ATOMIC(16, __u16)
ATOMIC(32, __u32)
ATOMIC(64, __u64)

/* Calls that clang 14 and later insert for memcpy and the like where they are not inlined. */

static void *copy(void *to, const void *from, size_t length)
{
	at_memory(READ, (void *)from, length);
	at_memory(WRITE, to, length);
	return memmove(to, from, length);
}

static void *fill(void *to, int byte, size_t length)
{
	char *at = to;

	at_memory(WRITE, to, length);
	while (length--)
		*(volatile char *)at++ = byte;
	return to;
}

void *__tsan_memcpy(void *to, const void *from, size_t length)
{
	return copy(to, from, length);
}

void *__tsan_memmove(void *to, const void *from, size_t length)
{
	return copy(to, from, length);
}

void *__tsan_memset(void *to, int byte, size_t length)
{
	return fill(to, byte, length);
}

/* clang 14 uses the plain names: the linker redirects them here. */
void *__wrap_memcpy(void *to, const void *from, size_t length)
{
	return copy(to, from, length);
}

void *__wrap_memset(void *to, int byte, size_t length)
{
	return fill(to, byte, length);
}
