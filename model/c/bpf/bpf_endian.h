/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Replaces libbpf's header on a little-endian machine. */
#pragma once

#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) ((__u32)__builtin_bswap32(x))
#define bpf_cpu_to_be64(x) ((__be64)__builtin_bswap64(x))
#define bpf_be64_to_cpu(x) ((__u64)__builtin_bswap64(x))
