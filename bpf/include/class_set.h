/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sets of classes. A look at one bit of a set saves most packets a look-up in a map. */
#pragma once
#include "layout.h"

static __always_inline int in_class_set(const struct class_set *set, __u32 class)
{
	return set && set->bits[class >> 6 & 1023] >> (class & 63) & 1;
}
