/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's settings, fixed when its programs are loaded: the kernel eliminates code that they disable. */
#pragma once
#include "layout.h"

/* 1 in the program for what comes out of a sealed tunnel (wire.md §6.11). Fixed at compile time, so that the other
 * programs stay as they are without it. */
#ifndef IN_TUNNEL
#define IN_TUNNEL 0
#endif

const volatile struct verifier_config config SEC(".rodata.config") = {};
