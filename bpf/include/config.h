/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's settings, fixed when its programs are loaded: the kernel eliminates code that they disable. */
#pragma once
#include "layout.h"

const volatile struct verifier_config config SEC(".rodata.config") = {};
